"""What a prompt looks like from outside: how many tokens, and how it begins.

Nothing here tokenizes. Tokens are estimated as UTF-8 bytes divided by a ratio that starts at 4 and
follows, for each model, the prompt tokens that engines report. Pictures and sounds count a fixed
number of tokens, not their base64; prompts given as token ids are counted exactly.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import orjson

from gateway.core.types import PromptSegment

BYTES_PER_TOKEN = 4.0
MESSAGE_TOKENS = 4
"""What a chat template puts around each message."""
MEDIA_TOKENS = 800
"""A picture, a sound or a film: engines take some hundreds to some thousands."""
MAX_SEGMENTS = 16
FIRST_CUT_BYTES = 256
CUT_GROWTH = 1.5
"""Inside a long text the cuts stand at 256 x 1.5^k bytes: a shared beginning is found to within
a third of its length, with a number of hashes that grows with the logarithm of the prompt."""
MIN_SEGMENT_BYTES = 64
MAX_SEEN = 50_000
MAX_MODELS = 256


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt flattened to bytes."""

    text: bytes
    boundaries: tuple[int, ...]
    """Where its messages end, in bytes."""
    extra_tokens: int
    """Tokens that are not text: templates, media, token ids."""


class Sketch(NamedTuple):
    """What of a prompt is enough to count its tokens and to tell what it begins with."""

    text_bytes: int
    extra_tokens: int
    cuts: tuple[tuple[int, int], ...] = ()
    """The end of each leading segment in bytes, with the hash of everything up to it."""


def read_prompt(body: Mapping[str, object]) -> Prompt:
    """Return the prompt of a chat or text completion; whatever is odd in it counts nothing."""
    pieces: list[bytes] = []
    boundaries: list[int] = []
    extra_tokens = size = 0
    tools = body.get("tools")
    if isinstance(tools, list) and tools:
        # Templates put the tools before the messages.
        pieces.append(orjson.dumps(tools))
        size = len(pieces[0])
        boundaries.append(size)
    messages = body.get("messages")
    if isinstance(messages, list):
        for message in messages:
            extra_tokens += MESSAGE_TOKENS
            for part in _parts(message):
                if isinstance(part, str):
                    encoded = part.encode("utf-8", "replace")
                    pieces.append(encoded)
                    size += len(encoded)
                else:
                    extra_tokens += part
            boundaries.append(size)
    else:
        text, extra_tokens = _text_prompt(body.get("prompt"))
        pieces.append(text)
    return Prompt(b"".join(pieces), tuple(boundaries), extra_tokens)


class TokenRatios:
    """Bytes per token by model, corrected by what engines report. Bounded."""

    def __init__(self) -> None:
        self._by_model: OrderedDict[str, float] = OrderedDict()

    def of(self, model: str) -> float:
        """Return the bytes that one token of the model stands for."""
        return self._by_model.get(model, BYTES_PER_TOKEN)

    def learn(self, model: str, sketch: Sketch, prompt_tokens: int) -> None:
        """An engine counted the prompt's tokens."""
        text_tokens = prompt_tokens - sketch.extra_tokens
        if text_tokens < 16 or sketch.text_bytes < 64:
            return  # too short to tell the text from what the template adds
        seen = min(max(sketch.text_bytes / text_tokens, 0.5), 16.0)
        self._by_model[model] = self.of(model) * 0.95 + seen * 0.05
        self._by_model.move_to_end(model)
        if len(self._by_model) > MAX_MODELS:
            self._by_model.popitem(last=False)


class SeenPrefixes:
    """Remembers how recent prompts began, so that a prompt's shared beginning is known. Bounded.

    Only what an earlier prompt began with too becomes a segment: the rest is no prefix of anything.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[int, None] = OrderedDict()
        self._sessions: OrderedDict[int, int] = OrderedDict()
        """How long each session's last prompt was, in tokens."""

    def segments(self, sketch: Sketch, bytes_per_token: float) -> tuple[PromptSegment, ...]:
        """Return the leading segments that were seen before; remember all of this prompt's."""
        shared: list[PromptSegment] = []
        previous, is_shared = 0, True
        for end, key in sketch.cuts:
            is_shared = is_shared and key in self._seen
            if is_shared:
                tokens = int(end / bytes_per_token) - int(previous / bytes_per_token)
                shared.append(PromptSegment(key, tokens))
                previous = end
            self._seen[key] = None
            self._seen.move_to_end(key)
        while len(self._seen) > MAX_SEEN:
            self._seen.popitem(last=False)
        return tuple(shared)

    def with_session(
        self, session: str, shared: tuple[PromptSegment, ...], prompt_tokens: int
    ) -> tuple[PromptSegment, ...]:
        """Return the segments of a call in a session, which is taken to continue its last one.

        What its text is seen to share counts where that is more.
        """
        digest = blake2b(session.encode("utf-8", "replace"), digest_size=8).digest()
        key = int.from_bytes(digest, "big")
        tokens = min(self._sessions.get(key, 0), prompt_tokens)
        self._sessions[key] = prompt_tokens
        self._sessions.move_to_end(key)
        if len(self._sessions) > MAX_SEEN:
            self._sessions.popitem(last=False)
        seen_tokens = sum(segment.tokens for segment in shared)
        if seen_tokens > tokens:
            return (PromptSegment(key, 0), *shared)
        return (PromptSegment(key, tokens),)


def sketch_of(model: str, prompt: Prompt) -> Sketch:
    """Return a prompt's sketch. Prompts of different models have no beginning in common."""
    # Salted by nothing: the same prompt has the same keys in every process.
    digest = blake2b(model.encode("utf-8", "replace"), digest_size=8)
    view = memoryview(prompt.text)
    begin = 0
    cuts: list[tuple[int, int]] = []
    for end in _cut_points(prompt):
        digest.update(view[begin:end])
        begin = end
        cuts.append((end, int.from_bytes(digest.copy().digest(), "big")))
    return Sketch(len(prompt.text), prompt.extra_tokens, tuple(cuts))


def estimate_tokens(sketch: Sketch, bytes_per_token: float) -> int:
    """Return about how many tokens the prompt has, at least 1."""
    return max(round(sketch.text_bytes / bytes_per_token) + sketch.extra_tokens, 1)


def _cut_points(prompt: Prompt) -> list[int]:
    """Return where segments end: at messages' ends, and at growing distances inside long texts."""
    points: list[int] = []
    last, at = 0, float(FIRST_CUT_BYTES)
    for end in (*prompt.boundaries, len(prompt.text)):
        # Many short messages must not use up the cuts of a long conversation.
        if end - last < _least_distance(last):
            continue
        while at < end:
            point = int(at)
            if point - last >= _least_distance(last) and end - point >= _least_distance(point):
                points.append(point)
                last = point
            at *= CUT_GROWTH
        points.append(end)
        last = end
    return points[:MAX_SEGMENTS]


def _least_distance(point: int) -> int:
    return max(MIN_SEGMENT_BYTES, point // 4)


def _parts(message: object) -> Iterator[str | int]:
    """Yield a message's texts, and the tokens of what is not text."""
    if not isinstance(message, dict):
        return
    for name in ("role", "name", "tool_call_id"):
        value = message.get(name)
        if isinstance(value, str):
            yield value
    content = message.get("content")
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            yield from _content_part(part)
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        yield orjson.dumps(calls).decode()


def _content_part(part: object) -> Iterator[str | int]:
    if isinstance(part, str):
        yield part
    elif isinstance(part, dict):
        text = part.get("text")
        if isinstance(text, str):
            yield text
        elif part.get("type") != "text":
            yield MEDIA_TOKENS


def _text_prompt(prompt: object) -> tuple[bytes, int]:
    """Return the text of a completion's prompt, and the number of its token ids."""
    if isinstance(prompt, str):
        return prompt.encode("utf-8", "replace"), 0
    if not isinstance(prompt, list):
        return b"", 0
    texts: list[bytes] = []
    ids = 0
    for item in prompt:
        if isinstance(item, str):
            texts.append(item.encode("utf-8", "replace"))
        elif isinstance(item, list):
            ids += len(item)
        else:
            ids += 1
    return b"".join(texts), ids
