"""What is passed on and what is learned does not depend on where the network cuts."""

import json
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.base import BackendError, EngineError, Shape, Usage
from gateway.backends.plain import is_plain_content
from gateway.backends.relay import ChoicesRelay, Renaming, read_usage
from gateway.backends.shapes import read_whole
from gateway.core.lengths import EDGES
from gateway.core.outcomes import FailureKind
from tests.backends.fake_backend import DONE, ROLE, USAGE, frame

GOOD = b"".join([b": hi\n\n", ROLE, frame("漢"), frame("字", "stop"), USAGE, DONE, b": late\n\n"])
BAD = b"".join([ROLE, frame("a"), b'data: {"error": {"message": "m", "code": 503}}\n\n', DONE])
CUT = b"".join([ROLE, frame("a"), b'data: {"choices": [{"del'])


@dataclass
class Ear:
    """A listener that remembers."""

    first_tokens: int = 0
    progress: list[int] = field(default_factory=list)
    ends: list[Usage] = field(default_factory=list)

    def first_token(self) -> None:
        self.first_tokens += 1

    def progressed(self, output_tokens: int) -> None:
        self.progress.append(output_tokens)

    def finished(self, usage: Usage) -> None:
        self.ends.append(usage)


def relayed(
    pieces: list[bytes], *, hide_usage: bool = False
) -> tuple[bytes, Ear, BackendError | None]:
    ear = Ear()
    relay = ChoicesRelay(ear, hide_usage=hide_usage)
    passed = b""
    for piece in pieces:
        if relay.ended or relay.failure:
            break
        passed += relay.feed(piece)
    if not (relay.ended or relay.failure):
        passed += relay.finish()
    return passed, ear, relay.failure


def cut(wire: bytes, at: set[int]) -> list[bytes]:
    edges = [0, *sorted(edge for edge in at if 0 < edge < len(wire)), len(wire)]
    return [wire[a:b] for a, b in pairwise(edges)]


CUTS = st.sets(st.integers(1, max(len(GOOD), len(BAD), len(CUT))))


@given(CUTS, st.booleans())
def test_a_good_stream_is_passed_up_to_done_and_counted_once(
    cuts: set[int], hide_usage: bool
) -> None:
    passed, ear, failure = relayed(cut(GOOD, cuts), hide_usage=hide_usage)

    expected = GOOD.removesuffix(b": late\n\n")
    assert passed == (expected.replace(USAGE, b"") if hide_usage else expected)
    assert ear.first_tokens == 1
    assert ear.ends == [Usage(5, 7, None)]
    assert failure is None


@given(CUTS)
def test_an_error_ends_the_stream_before_it(cuts: set[int]) -> None:
    passed, ear, failure = relayed(cut(BAD, cuts))

    assert passed == ROLE + frame("a")
    assert ear.ends == []
    assert isinstance(failure, EngineError)
    assert (failure.kind, failure.status) == (FailureKind.OVERLOADED, 503)


@given(CUTS)
def test_a_fragment_is_never_passed_on(cuts: set[int]) -> None:
    passed, ear, failure = relayed(cut(CUT, cuts))

    assert passed == ROLE + frame("a")
    assert ear.ends == []
    assert failure is not None
    assert failure.kind is FailureKind.RESET


def test_an_end_that_lacks_only_its_blank_line_is_an_end() -> None:
    passed, ear, failure = relayed([frame("a", "stop"), b"data: [DONE]"])

    assert passed == frame("a", "stop") + b"data: [DONE]"
    assert len(ear.ends) == 1
    assert failure is None


def test_progress_is_told_at_the_edges_of_the_buckets_only() -> None:
    _, ear, _ = relayed([frame("t")] * 100 + [frame("", "stop"), DONE])

    edges = [int(edge) for edge in EDGES if 1 < edge <= 100]
    assert ear.progress == edges
    assert ear.ends == [Usage(100)]


def test_a_stream_of_nothing_is_no_answer() -> None:
    _, ear, failure = relayed([DONE])

    assert failure is not None
    assert failure.kind is FailureKind.BAD_ANSWER
    assert ear.ends == []


TEXTS = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        ['"finish_reason":null', '"usage":', '{"error"', '"delta":{"content":"', "}]}"]
    ),
)
FINISHES = st.sampled_from([None, "stop", "length", "abort"])
MORE = st.sampled_from(
    [{}, {"usage": None}, {"usage": {"completion_tokens": 9}}, {"error": None}, {"error": {}}]
)


@given(st.lists(st.tuples(TEXTS, FINISHES, MORE, st.integers(1, 2)), max_size=4))
def test_chunks_are_read_alike_whether_they_are_taken_apart_or_not(
    chunks: list[tuple[str, str | None, dict[str, object], int]],
) -> None:
    frames = [
        {
            "id": "x",
            "choices": [
                {"index": i, "delta": {"content": text}, "finish_reason": finish if i else None}
                if choices > 1
                else {"index": 0, "delta": {"content": text}, "finish_reason": finish}
                for i in range(choices)
            ],
            **more,
        }
        for text, finish, more, choices in chunks
    ]
    # With blanks after its colons no chunk is told from its bytes.
    tight, wide = (
        [f"data: {json.dumps(frame, separators=separators)}\n\n".encode() for frame in frames]
        for separators in ((",", ":"), (", ", ": "))
    )

    passed, ear, failure = relayed([*tight, DONE])
    expected, their_ear, their_failure = relayed([*wide, DONE])

    assert (passed.count(b"\n\n"), ear, str(failure)) == (
        expected.count(b"\n\n"),
        their_ear,
        str(their_failure),
    )


def test_ordinary_chunks_are_told_from_their_bytes() -> None:
    chunk = b'{"id":"x","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}'

    assert is_plain_content(chunk)
    assert not is_plain_content(chunk.replace(b"null", b'"stop"'))
    assert not is_plain_content(chunk.replace(b'"a"', b'""'))


@pytest.mark.parametrize(
    ("delta", "is_content"),
    [
        (b'{"role": "assistant", "content": ""}', False),
        (b"{}", False),
        (b'{"content": null}', False),
        (b'{"content": "a"}', True),
        (b'{"reasoning_content": "a"}', True),
        (b'{"tool_calls": [{"index": 0}]}', True),
    ],
)
def test_the_first_token_is_the_first_content_of_any_kind(delta: bytes, is_content: bool) -> None:
    """Case 189."""
    _, ear, _ = relayed([b'data: {"choices": [{"delta": %b}]}\n\n' % delta, DONE])

    assert ear.first_tokens == int(is_content)


@pytest.mark.parametrize("public", ["gpt-x", 'odd"name', "back\\slash", "a/b", "\\1"])
def test_an_alias_takes_the_place_of_the_name_and_nothing_elses(public: str) -> None:
    text = '"model": "m1"'
    wire = json.dumps({"text": text, "model": "m1", "other": {"model": "m1"}}).encode()

    renamed = json.loads(Renaming("m1", public).apply(wire))

    assert renamed == {"text": text, "model": public, "other": {"model": "m1"}}


@pytest.mark.parametrize("odd", [-1, 10**100, 2**64 - 1, True, 1.5, "3", None, [3]])
def test_counts_that_no_call_can_have_are_not_believed(odd: object) -> None:
    told = {"completion_tokens": odd, "prompt_tokens": odd, "cache_read_input_tokens": odd}
    details = {"generated_tokens": odd, "input_length": odd}

    assert read_usage(told) == Usage(0)
    assert read_whole(Shape.GENERATED, {"generated_text": "a", "details": details})[0] == Usage(0)
