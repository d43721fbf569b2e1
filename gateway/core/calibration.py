"""Calibration: a backend's profile, corrected by what its engine is seen to do.

A profile is a guess: a table's GPU, another's measurement, an engine that shares its machine. Two
factors correct it, one for reading prompts (`prefill_s_per_token`), one for producing tokens
(`decode_base_s` and `kv_read_s_per_token`, which hang on the same memory). Each is a robust,
bounded, slow mean of observed over expected time.

What is observed must not contain waiting, or a busy backend would look like a slow one and the
scheduler would chase its own tail. Only two things are taken:

- A *prefill period*: from a start on a backend that has no prompt to read until no prompt is left
  to read. Engines that have room never leave prompts lying, so however many calls took part, the
  period is the time for all their fresh tokens together.
- A call's *quiet time*: from its first token to its last, without the prefill periods in between;
  over the tokens produced in it that is the decode step at the batch and context it shared.

Periods and quiet times are dropped when the engine may have queued (more promised than its KV
cache or batch holds), when a call broke or left, and while a call that reports no first token may
still be reading its prompt. Calls that report none are measured as a whole: see `silence`.
"""

from math import inf
from typing import NamedTuple

from gateway.core.call import Call
from gateway.core.corrections import MAX_FACTOR, Correction, Saved, corrected
from gateway.core.cost import prefill_s, step_s
from gateway.core.events import Finished
from gateway.core.profiles import GpuProfile
from gateway.core.silence import Account, Silence

MIN_PREFILL_STEPS = 4.0
"""A prefill period counts if its prompts take at least as long as this many decode steps."""
MIN_QUIET_STEPS = 8.0
MIN_QUIET_STEPS_A_PERIOD = 4.0
"""Steps within prefill periods are estimated to about one: enough others must outweigh them."""


class Speed(NamedTuple):
    """What was learned of a backend's speed, and of which constants."""

    constants: tuple[float, float, float, float]
    prefill: Saved
    decode: Saved


class _Period:
    """A time in which a backend reads prompts without a break."""

    __slots__ = (
        "batch",
        "began_at",
        "context_tokens",
        "duration_s",
        "fresh_tokens",
        "is_spoiled",
        "reading",
        "running",
    )

    def __init__(self, began_at: float, batch: int, context_tokens: int) -> None:
        self.began_at = began_at
        self.batch = batch
        """Calls that decoded when it began."""
        self.context_tokens = context_tokens
        self.duration_s = 0.0
        self.fresh_tokens = 0
        self.reading = 0
        """Calls whose first token is not out."""
        self.running = 0
        """Calls that have not ended: only then is it known what the engine had cached."""
        self.is_spoiled = False


class _Probe:
    """One running call, as calibration sees it."""

    __slots__ = (
        "batch_s",
        "busy_periods",
        "busy_s",
        "busy_steps",
        "context_token_s",
        "context_tokens",
        "decodes",
        "fresh_tokens",
        "period",
        "quiet_from",
    )

    def __init__(self, call: Call) -> None:
        self.fresh_tokens = call.fresh_tokens
        self.context_tokens = call.request.prompt_tokens + call.output_tokens // 2
        """What attention reads for it on average while it decodes."""
        self.period: _Period | None = None
        self.decodes = False
        self.quiet_from: float | None = None
        """When its first token came, unless others' prompts were still being read then."""
        # The backend's running totals at that instant.
        self.busy_s = self.busy_steps = self.batch_s = self.context_token_s = 0.0
        self.busy_periods = 0


class Calibration:
    """Watches one backend. Told of starts, first tokens and ends; each costs about 1 us."""

    __slots__ = (
        "_batch",
        "_batch_s",
        "_busy_periods",
        "_busy_s",
        "_busy_steps",
        "_context_token_s",
        "_context_tokens",
        "_counted_at",
        "_period",
        "_probes",
        "_silence",
        "_trusted_from",
        "configured",
        "decode",
        "prefill",
        "profile",
    )

    def __init__(self, configured: GpuProfile) -> None:
        self.configured = configured
        self.profile = configured
        """The corrected profile."""
        self.prefill = Correction()
        self.decode = Correction()
        self._probes: dict[str, _Probe] = {}
        self._period: _Period | None = None
        self._silence = Silence()
        self._trusted_from = -inf
        """What began at or before this instant may have been disturbed."""
        # Calls that decode now, and integrals over time of how many and with how much context.
        self._batch = 0
        self._context_tokens = 0
        self._batch_s = 0.0
        self._context_token_s = 0.0
        self._counted_at = 0.0
        # Over all prefill periods so far.
        self._busy_s = 0.0
        self._busy_steps = 0.0
        self._busy_periods = 0

    def configure(self, configured: GpuProfile) -> None:
        """The profile is configured anew; what was learned of other constants is forgotten."""
        if _speed(configured) != _speed(self.configured):
            self.prefill = Correction()
            self.decode = Correction()
        self.configured = configured
        self._correct()

    def saved(self) -> Speed:
        """Return what was learned, to be kept over a restart."""
        return Speed(_speed(self.configured), self.prefill.saved, self.decode.saved)

    def restore(self, saved: Speed) -> None:
        """Take over what an earlier process learned, if it is of the same constants."""
        if saved.constants == _speed(self.configured):
            self.prefill.restore(saved.prefill)
            self.decode.restore(saved.decode)
            self._correct()

    def started(self, call: Call, now: float, *, is_crowded: bool) -> None:
        """A call enters the engine. `is_crowded`: it may have to wait there."""
        self._count(now)
        self._silence.started(call, now, self.profile, is_crowded=is_crowded)
        probe = _Probe(call)
        self._probes[call.request.id] = probe
        if call.request.reports_first_token:
            period = self._period
            if period is None:
                period = self._period = _Period(now, self._batch, self._context_tokens)
            period.fresh_tokens += probe.fresh_tokens
            period.reading += 1
            period.running += 1
            probe.period = period
        else:
            ahead_tokens = probe.fresh_tokens + (self._period.fresh_tokens if self._period else 0)
            self._distrust(now + MAX_FACTOR * prefill_s(self.profile, ahead_tokens))
        if is_crowded:
            self._distrust(now)

    def first_token(self, call: Call, now: float) -> None:
        """A running call's answer has begun."""
        probe = self._probes.get(call.request.id)
        if probe is None or probe.decodes:
            return
        self._count(now)
        if probe.period is not None:
            self._has_read(probe.period, now)
        self._batch += 1
        self._context_tokens += probe.context_tokens
        probe.decodes = True
        if self._period is None:
            probe.quiet_from = now
            probe.busy_s = self._busy_s
            probe.busy_steps = self._busy_steps
            probe.busy_periods = self._busy_periods
            probe.batch_s = self._batch_s
            probe.context_token_s = self._context_token_s

    def ended(self, call: Call, now: float, finished: Finished | None) -> bool:
        """A call leaves the engine; None: it broke or was stopped. Return whether we learned.

        "Learned" means that `profile` is another one now.
        """
        probe = self._probes.pop(call.request.id, None)
        if probe is None:
            return False
        self._count(now)
        account = self._silence.ended(call, now)
        if probe.decodes:
            self._batch -= 1
            self._context_tokens -= probe.context_tokens
        if finished is None:
            self._broke(probe, now)
            return False
        if probe.period is not None:
            changed = self._learn_from_stream(call, probe, probe.period, finished, now)
        else:
            changed = account is not None and self._learn_from_silence(account, finished, now)
        if changed:
            self._correct()
        return changed

    def _broke(self, probe: _Probe, now: float) -> None:
        period = probe.period
        if period is not None:
            period.is_spoiled = True
            if not probe.decodes:
                self._has_read(period, now)

    def _learn_from_stream(
        self, call: Call, probe: _Probe, period: _Period, finished: Finished, now: float
    ) -> bool:
        if not probe.decodes:  # it was announced that its first token would be reported
            self._broke(probe, now)
        if finished.cached_tokens is not None:
            prompt_tokens = finished.prompt_tokens or call.request.prompt_tokens
            fresh_tokens = max(prompt_tokens - finished.cached_tokens, 1)
            period.fresh_tokens += fresh_tokens - probe.fresh_tokens
        period.running -= 1
        changed = False
        if not period.running and not period.is_spoiled:
            changed = self._learn_prefill(period)
        if probe.quiet_from is not None:
            changed |= self._learn_decode(probe, probe.quiet_from, finished.output_tokens, now)
        return changed

    def _learn_prefill(self, period: _Period) -> bool:
        profile = self.profile
        step = step_s(profile, period.batch, period.context_tokens)
        if profile.prefill_s_per_token * period.fresh_tokens < MIN_PREFILL_STEPS * step:
            return False
        steps = self._chunks(period)
        given_s = steps * (
            profile.step_overhead_s + profile.kv_read_s_per_token * period.context_tokens
        )
        if period.batch:
            given_s += step / 2  # it began, on average, in the middle of a decode step
        tokens = period.fresh_tokens + steps * period.batch
        expected_s = self.configured.prefill_s_per_token * tokens
        return self.prefill.add((period.duration_s - given_s) / expected_s)

    def _learn_decode(self, probe: _Probe, since: float, output_tokens: int, now: float) -> bool:
        if self._period is not None or since <= self._trusted_from:
            return False
        periods = self._busy_periods - probe.busy_periods
        steps = output_tokens - 1 - (self._busy_steps - probe.busy_steps)
        if steps < MIN_QUIET_STEPS + MIN_QUIET_STEPS_A_PERIOD * periods:
            return False
        span_s = now - since
        if span_s <= 0:
            return False
        quiet_s = span_s - (self._busy_s - probe.busy_s)
        batch = (self._batch_s - probe.batch_s) / span_s
        context_tokens = (self._context_token_s - probe.context_token_s) / span_s
        return self._add_decode(quiet_s / steps, batch, context_tokens)

    def _learn_from_silence(self, account: Account, finished: Finished, now: float) -> bool:
        parts = self._silence.predicted(account, finished.output_tokens, now, self.profile)
        if parts is None:
            return False
        reading_s, writing_s = parts
        predicted_s = reading_s + writing_s
        ratio = (now - account.started_at) / predicted_s
        # The least change of both (in logarithms) that explains the call: Kaczmarz' step.
        squares = reading_s**2 + writing_s**2
        changed = self.prefill.nudge(ratio, predicted_s * reading_s / squares)
        return self.decode.nudge(ratio, predicted_s * writing_s / squares) or changed

    def _add_decode(self, step: float, batch: float, context_tokens: float) -> bool:
        configured = self.configured
        if self.profile.prefill_s_per_token * batch > self.profile.decode_base_s:
            return False  # so large a batch is bound by arithmetic
        expected_s = configured.decode_base_s + configured.kv_read_s_per_token * context_tokens
        return self.decode.add((step - configured.step_overhead_s) / expected_s)

    def _has_read(self, period: _Period, now: float) -> None:
        """One of its prompts is read, or gone; after the last the period is over."""
        period.reading -= 1
        if period.reading:
            return
        period.duration_s = now - period.began_at
        period.is_spoiled |= period.began_at <= self._trusted_from
        self._period = None
        self._busy_s += period.duration_s
        self._busy_steps += self._chunks(period) + (0.5 if period.batch else 0.0)
        self._busy_periods += 1

    def _chunks(self, period: _Period) -> int:
        room = max(self.profile.max_batched_tokens - period.batch, 1)
        return max(-(-period.fresh_tokens // room), 1)

    def _count(self, now: float) -> None:
        span_s = now - self._counted_at
        self._batch_s += self._batch * span_s
        self._context_token_s += self._context_tokens * span_s
        self._counted_at = now

    def _distrust(self, until: float) -> None:
        self._trusted_from = max(self._trusted_from, until)

    def _correct(self) -> None:
        prefill, decode = self.prefill.applied, self.decode.applied
        self.profile = corrected(self.configured, prefill, decode)


def _speed(profile: GpuProfile) -> tuple[float, float, float, float]:
    return (
        profile.prefill_s_per_token,
        profile.decode_base_s,
        profile.kv_read_s_per_token,
        profile.step_overhead_s,
    )
