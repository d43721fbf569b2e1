"""StreamWatch: what a load generator wants to know of an event stream (pure)."""

import orjson

_END = b"\n\n"


class StreamWatch:
    """Fed with chunks and the instants they came; keeps first token, gaps, usage and errors."""

    def __init__(self) -> None:
        self.first_at: float | None = None
        """When the first content came."""
        self.longest_gap_s = 0.0
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.error: str | None = None
        self.is_complete = False
        """`[DONE]` was seen."""
        self._rest = b""
        self._last_at = 0.0

    def feed(self, chunk: bytes, now: float) -> None:
        """Take in bytes that arrived at `now`."""
        *events, self._rest = (self._rest + chunk).replace(b"\r\n", b"\n").split(_END)
        for event in events:
            data = b"".join(
                line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")
            )
            if data == b"[DONE]":
                self.is_complete = True
            elif data:
                self._take(data, now)

    def _take(self, data: bytes, now: float) -> None:
        try:
            event = orjson.loads(data)
        except ValueError:
            self.error = "bad_event"
            return
        if not isinstance(event, dict):
            self.error = "bad_event"
            return
        if event.get("error") is not None:
            error = event["error"]
            self.error = str(error.get("code") if isinstance(error, dict) else error)
            return
        usage = event.get("usage")
        if usage:
            self.prompt_tokens = usage.get("prompt_tokens")
            self.output_tokens = usage.get("completion_tokens")
        if any(_content(choice) for choice in event.get("choices") or ()):
            if self.first_at is None:
                self.first_at = now
            else:
                self.longest_gap_s = max(self.longest_gap_s, now - self._last_at)
            self._last_at = now


def _content(choice: dict[str, object]) -> object:
    delta = choice.get("delta")
    return delta.get("content") if isinstance(delta, dict) else None
