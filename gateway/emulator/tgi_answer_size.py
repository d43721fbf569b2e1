"""How long a TGI answer becomes: what is asked for, where there is room, where it stops (pure)."""

from collections.abc import Sequence

from gateway.emulator.asks import Choice
from gateway.emulator.prompts import Prompt, answer_text, natural_output_tokens
from gateway.emulator.tgi_fields import Body, invalid

MAX_STOP_SEQUENCES = 4
RESERVED_TOKENS = 1024
"""For so much of an answer, at most, there is room when it begins. Beyond, TGI queues it again with
what it has; here it goes on growing, and may be preempted.
"""


def stop_sequences(fields: Body) -> tuple[str, ...]:
    """Return what ends an answer that says it, or refuse it."""
    stops = fields.get("stop")
    if not isinstance(stops, list):
        return ()
    if len(stops) > MAX_STOP_SEQUENCES:
        raise invalid(
            f"`stop` supports up to {MAX_STOP_SEQUENCES} stop sequences. Given: {len(stops)}"
        )
    return tuple(str(stop) for stop in stops)


def room_tokens(prompt: Prompt, limit: int | None, max_total: int) -> int:
    """Return how many tokens the answer may have, or refuse it.

    Only the first 1,024 are checked in advance.
    """
    max_input = max_total - 1
    if prompt.tokens > max_input:
        raise invalid(f"`inputs` must have less than {max_input} tokens. Given: {prompt.tokens}")
    if limit is None:
        return max_total - prompt.tokens
    if prompt.tokens + min(limit, RESERVED_TOKENS) > max_total:
        raise invalid(
            f"`inputs` tokens + `max_new_tokens` must be <= {max_total}. Given: {prompt.tokens} "
            f"`inputs` tokens and {limit} `max_new_tokens`"
        )
    return min(limit, max_total - prompt.tokens)


def choice_of(
    number: int, prompt: Prompt, limit: int, told: object, stops: Sequence[str], seed: int
) -> Choice:
    """Return one answer: as long as `told`, else as its prompt makes it, within limit and stops."""
    length = told if isinstance(told, int) else natural_output_tokens(prompt, 0, seed)
    reason = "length" if length > limit else "stop"
    tokens = min(length, limit)
    offset = (prompt.digest + number) & 0xFFFF
    at_stop = _first_stop(offset, tokens, stops)
    if at_stop is not None:
        tokens, reason = at_stop, "stop_sequence"
    return Choice(
        index=number,
        prompt_tokens=prompt.tokens,
        prefix=prompt.prefix,
        output_tokens=tokens,
        finish_reason=reason,
        text_offset=offset,
        reserved_tokens=min(limit, RESERVED_TOKENS),
    )


def _first_stop(offset: int, tokens: int, stops: Sequence[str]) -> int | None:
    """Return after how many tokens the answer says one of `stops`; None: never."""
    text = answer_text(offset, 0, tokens) if stops else ""
    found = [text.index(stop) + len(stop) for stop in stops if stop and stop in text]
    # A token is a word with the space behind it.
    return text[: min(found)].rstrip().count(" ") + 1 if found else None
