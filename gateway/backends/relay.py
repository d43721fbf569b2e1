"""StreamRelay: what of a stream goes on to the client, and the facts that are read beside it.

The bytes of a whole event are passed on exactly as they came, unless the engine's dialect has to be
mended. An event that is not whole yet is
held until it is: a client could not use it, and if the connection breaks inside it, whatever the
gateway adds begins on a fresh event boundary.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from math import inf

import orjson

from gateway.backends import engine_errors
from gateway.backends.base import (
    BackendError,
    BadAnswer,
    ConnectionBroken,
    EngineError,
    Listener,
    Usage,
)
from gateway.backends.dialect import Mender
from gateway.backends.lenient_json import dumps, loads
from gateway.backends.plain import PlainChunks, is_plain_content
from gateway.backends.sse import MAX_EVENT_BYTES, SseDecoder, SseEvent, SseOverflow
from gateway.core.lengths import EDGES
from gateway.core.outcomes import FailureKind

DONE = b"[DONE]"
BROKEN_FINISHES = frozenset({"abort", "error"})
"""Finish reasons with which an engine ends an answer that it did not complete."""

MAX_TOKENS = 10**9
"""Of one call: an engine that tells more of them is not believed."""
_EDGES_AND_BEYOND = (*EDGES, inf)


class Renaming:
    """Gives a model its alias back in answers, without touching another byte."""

    def __init__(self, served: str, public: str) -> None:
        # In a JSON string the quotes would be escaped, so this cannot match inside a text.
        name = re.escape(orjson.dumps(served))
        self._served = re.compile(rb'("model"\s*:\s*)' + name)
        self._public = orjson.dumps(public).replace(b"\\", b"\\\\")

    def apply(self, raw: bytes) -> bytes:
        """Return the JSON text with the alias for the first name."""
        return self._served.sub(rb"\g<1>" + self._public, raw, count=1)


class StreamRelay:
    """One stream of whatever shape (pure but for what it tells its listener).

    As it stands it passes everything and ends when the engine does; subclasses know more.
    """

    def __init__(
        self,
        listener: Listener,
        *,
        hide_usage: bool,
        renaming: Renaming | None = None,
        mender: Mender | None = None,
        explain: Callable[[EngineError], EngineError] = lambda error: error,
        max_event_bytes: int = MAX_EVENT_BYTES,
    ) -> None:
        self._decoder = SseDecoder(max_event_bytes)
        self._plain = PlainChunks()
        self._listener = listener
        self._hide_usage = hide_usage
        self._renaming = renaming
        self._mender = mender
        self._explain = explain
        self.finish_reason: str | None = None
        self.made_id: str | None = None
        """The id of what the engine keeps of this answer."""
        self._content_events = 0
        self._told_tokens = 0
        self._prompt_tokens: int | None = None
        self._cached_tokens: int | None = None
        self._next_edge = 0.0
        self.data_events = 0
        """Events that carried data: only they are progress, comments are not."""
        self.ended = False
        """The answer is complete and in order; the listener knows."""
        self.failure: BackendError | None = None
        """Why the stream ends here, when it does so out of order."""

    @property
    def usage(self) -> Usage:
        """Token counts so far. Where the engine told none, an event counts as a token."""
        output_tokens = self._told_tokens or self._content_events
        return Usage(output_tokens, self._prompt_tokens, self._cached_tokens)

    def feed(self, piece: bytes) -> bytes:
        """Take in what the engine sent; return what goes to the client now."""
        try:
            events = self._decoder.feed(piece)
        except SseOverflow as overflow:
            self.failure = BadAnswer(str(overflow))
            return b""
        if len(events) == 1:
            return self._passed(events[0])
        passed: list[bytes] = []
        for event in events:
            passed.append(self._passed(event))
            if self.ended or self.failure:
                break
        return b"".join(passed)

    def finish(self) -> bytes:
        """The engine closed the stream: return what goes to the client still."""
        last = self._decoder.finish()
        # An event that lacks only its blank line is taken; a fragment of one is not.
        passed = self._passed(last) if last is not None and _is_whole(last) else b""
        if not self.ended and self.failure is None:
            self._closed()
        return passed

    def _passed(self, event: SseEvent) -> bytes:
        """Take in an event; return what goes to the client for it."""
        if event.data is None:
            return event.raw
        self.data_events += 1
        if event.data == DONE:
            return event.raw if self._done() else b""
        try:
            frame = loads(event.data)
        except ValueError:
            frame = {"error": {}} if event.name == b"error" else None
        # Exactly a dict: looking through `Mapping` would cost more than the parsing.
        if not isinstance(frame, dict):
            return event.raw
        if frame.get("error") is not None or event.name == b"error":
            self._fail(frame)
            return b""
        if self._mender is not None:
            return self._mended(self._mender.frame(frame))
        if not self._passes(frame):
            return b""
        return self._renaming.apply(event.raw) if self._renaming else event.raw

    def _mended(self, frames: Iterable[dict[str, object]]) -> bytes:
        try:
            return b"".join(b"data: %b\n\n" % dumps(one) for one in frames if self._passes(one))
        except ValueError:
            self.failure = BadAnswer("the engine's answer is nested too deeply")
            return b""

    def _passes(self, frame: dict[str, object]) -> bool:
        """Read a frame; return whether the client is to have it."""
        usage = frame.get("usage")
        if isinstance(usage, dict):
            self._read_usage(usage)
        self._count_content()
        return True

    def _done(self) -> bool:
        """The engine says `[DONE]`; return whether the answer is complete."""
        self._end()
        return True

    def _closed(self) -> None:
        """The engine closed the stream in order: it has ended, or failed."""
        self._end()

    def _end(self) -> None:
        self.ended = True
        self._listener.finished(self.usage)

    def _fail(self, frame: Mapping[str, object]) -> None:
        status = engine_errors.status_of(frame)
        kind = engine_errors.kind_of_status(status)
        error = EngineError(kind, status, engine_errors.error_of(frame, status))
        self.failure = self._explain(error)

    def _count_content(self, events: int = 1) -> None:
        """Tell of content that came at once: how far it goes, whatever it passed on the way."""
        if not self._content_events:
            self._listener.first_token()
            self._next_edge = _edge_beyond(self._told_tokens or 1)
        self._content_events += events
        tokens = self._told_tokens or self._content_events
        if tokens >= self._next_edge:
            self._listener.progressed(tokens)
            self._next_edge = _edge_beyond(tokens)

    def _read_usage(self, usage: Mapping[str, object]) -> None:
        output_tokens, prompt_tokens, cached_tokens = read_usage(usage)
        # With continuous usage every event holds running totals.
        self._told_tokens = max(self._told_tokens, output_tokens)
        self._prompt_tokens = prompt_tokens if prompt_tokens is not None else self._prompt_tokens
        self._cached_tokens = cached_tokens if cached_tokens is not None else self._cached_tokens


class ChoicesRelay(StreamRelay):
    """Chunks of chat or text completions."""

    def feed(self, piece: bytes) -> bytes:
        """Take in what the engine sent; return what goes to the client now."""
        plain, passed = self._plain, b""
        size = plain.reach(piece) if self._decoder.is_between_events else 0
        if not size:  # what comes first may be unlike the rest
            first = plain.first(piece)
            passed, piece = super().feed(piece[:first]), piece[first:]
            if not piece or self.ended or self.failure:
                return passed
            size = plain.reach(piece) if self._decoder.is_between_events else 0
        run, piece = piece[:size], piece[size:]
        chunks = plain.count(run)
        if not chunks:
            return passed + super().feed(run + piece)
        self.data_events += chunks
        self._count_content(chunks)
        passed += plain.renamed(run) if self._renaming else run
        return passed + super().feed(piece) if piece else passed

    def _passed(self, event: SseEvent) -> bytes:
        data = event.data
        if data is None or event.name or self._mender is not None or not is_plain_content(data):
            return super()._passed(event)
        self.data_events += 1
        self._count_content()
        rename = self._renaming.apply if self._renaming is not None else None
        self._plain.learn(event.raw, rename)
        return rename(event.raw) if rename is not None else event.raw

    def _passes(self, frame: dict[str, object]) -> bool:
        usage = frame.get("usage")
        if isinstance(usage, dict):
            self._read_usage(usage)
        choices = frame.get("choices")
        if choices and isinstance(choices, list):
            return self._read_choices(choices)
        return not (self._hide_usage and usage)

    def _done(self) -> bool:
        # `[DONE]` is no success: engines that die say it too. A reason is.
        if self.finish_reason is None:
            self.failure = BadAnswer("the engine ended the stream without a complete answer")
            return False
        self._end()
        return True

    def _closed(self) -> None:
        if self.finish_reason is None:
            self.failure = ConnectionBroken("the engine ended the stream before the answer")
        else:
            self._end()

    def _read_choices(self, choices: list[object]) -> bool:
        has_content = False
        for choice in choices:
            if not isinstance(choice, dict):
                continue
            delta = choice.get("delta")
            if isinstance(delta, dict):
                has_content = has_content or bool(delta.get("content")) or _has_content(delta)
            elif choice.get("text"):
                has_content = True
            reason = choice.get("finish_reason")
            if isinstance(reason, str) and reason:
                self.finish_reason = reason
                if reason in BROKEN_FINISHES:
                    self.failure = ended_early(reason)
                    return False
        if has_content:
            self._count_content()
        return True


def ended_early(reason: str) -> EngineError:
    """Return the failure that a finish reason of an aborted answer means."""
    said = {"message": f"The engine ended the answer early ({reason})."}
    return EngineError(FailureKind.SERVER_ERROR, 500, engine_errors.error_of(said, 500))


def read_usage(usage: Mapping[str, object]) -> Usage:
    """Return the counts of a `usage` object in OpenAI's names or the newer ones, whatever is there.

    Anthropic's `input_tokens` leave out what was cached.
    """
    prompt_tokens = _first_count(usage, "prompt_tokens", "input_tokens")
    cached_tokens = count(usage.get("cache_read_input_tokens"))
    if cached_tokens is not None and prompt_tokens is not None:
        prompt_tokens += cached_tokens
    for name in ("prompt_tokens_details", "input_tokens_details"):
        details = usage.get(name)
        if isinstance(details, dict):
            cached_tokens = count(details.get("cached_tokens"))
    return Usage(
        output_tokens=_first_count(usage, "completion_tokens", "output_tokens") or 0,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
    )


def _has_content(delta: dict[str, object]) -> bool:
    """Return whether a delta carries something: text, a tool call, reasoning, or what may come."""
    return any(value and name != "role" for name, value in delta.items())


def count(value: object) -> int | None:
    """Return a number of tokens; None for what cannot be one."""
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else None


def _first_count(usage: Mapping[str, object], *names: str) -> int | None:
    return next((told for name in names if (told := count(usage.get(name))) is not None), None)


def _edge_beyond(tokens: int) -> float:
    return _EDGES_AND_BEYOND[bisect_right(EDGES, tokens)]


def _is_whole(event: SseEvent) -> bool:
    if event.data is None or event.data == DONE:
        return event.data is not None
    try:
        loads(event.data)
    except ValueError:
        return False
    return True
