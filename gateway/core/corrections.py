"""Correction: one constant's factor, learned from ratios of observed to expected time."""

from dataclasses import replace
from math import exp, inf, log
from typing import NamedTuple

from gateway.core.profiles import GpuProfile

MAX_FACTOR = 4.0
"""A profile that is further off than this is a configuration error: say so, do not hide it."""
GAIN = 0.06
"""Weight of a new observation: an error of 2 is half gone after some fifteen."""
MAX_SURPRISE = 0.5
"""Observations further than this (in logarithms) from what is believed count as no further."""
DEAD_BAND = 0.08
"""Corrections smaller than this (in logarithms) are noise and are not applied."""
RESOLUTION = 0.04
"""The applied factor follows the learned one in steps of at least this (in logarithms)."""


class Saved(NamedTuple):
    """A correction as it is kept over a restart."""

    learned_log: float
    applied_log: float
    samples: int


class Correction:
    """A factor learned from ratios of observed to expected time."""

    __slots__ = ("_applied_log", "_log", "samples")

    def __init__(self) -> None:
        self._log = 0.0
        self._applied_log = 0.0
        self.samples = 0

    @property
    def learned(self) -> float:
        """What the observations say so far."""
        return exp(self._log)

    @property
    def applied(self) -> float:
        """What the profile is multiplied by: 1 while the correction is within the noise."""
        return exp(self._applied_log)

    @property
    def saved(self) -> Saved:
        """What there is to keep of it."""
        return Saved(self._log, self._applied_log, self.samples)

    def restore(self, saved: Saved) -> None:
        """Take over what was saved of an earlier one."""
        bound = log(MAX_FACTOR)
        self._log = min(max(saved.learned_log, -bound), bound)
        self._applied_log = min(max(saved.applied_log, -bound), bound)
        self.samples = saved.samples

    def add(self, ratio: float) -> bool:
        """Take in one observation; return whether the applied factor changed."""
        return self._move((log(ratio) if ratio > 0 else -inf) - self._log, 1.0)

    def nudge(self, ratio: float, weight: float) -> bool:
        """Take in one observation of time that this constant explains only in part.

        `ratio`: to what the profile predicts as it is corrected now.
        """
        surprise = (log(ratio) if ratio > 0 else -inf) + self._applied_log - self._log
        return self._move(surprise, weight)

    def _move(self, surprise: float, weight: float) -> bool:
        self.samples += 1
        self._log += GAIN * weight * min(max(surprise, -MAX_SURPRISE), MAX_SURPRISE)
        bound = log(MAX_FACTOR)
        self._log = min(max(self._log, -bound), bound)
        dead = DEAD_BAND if self._applied_log == 0 else DEAD_BAND / 2  # do not flutter at its edge
        target = self._log if abs(self._log) > dead else 0.0
        if abs(target - self._applied_log) < RESOLUTION:
            return False
        self._applied_log = target
        return True


def corrected(profile: GpuProfile, prefill: float, decode: float) -> GpuProfile:
    """Return the profile with its prefill and decode constants multiplied by the two factors."""
    if prefill == 1.0 and decode == 1.0:
        return profile
    return replace(
        profile,
        prefill_s_per_token=profile.prefill_s_per_token * prefill,
        decode_base_s=profile.decode_base_s * decode,
        kv_read_s_per_token=profile.kv_read_s_per_token * decode,
    )
