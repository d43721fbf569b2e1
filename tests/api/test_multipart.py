"""Small fields are found in a form wherever it is cut, and files are not kept."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.multipart import (
    MAX_FIELD_BYTES,
    MAX_PART_HEAD_BYTES,
    FormError,
    FormScanner,
    boundary_of,
)

BOUNDARY = b"x-Yz09"
FILE = b'Content-Disposition: form-data; name="file"; filename="../../model"\r\nContent-Type: a/b'
MODEL = b'content-disposition: form-data; name="model"'


def form(*parts: tuple[bytes, bytes], last: bytes = b"--\r\n") -> bytes:
    """A form of (head, content) parts."""
    body = b"".join(
        b"--" + BOUNDARY + b"\r\n" + head + b"\r\n\r\n" + content + b"\r\n"
        for head, content in parts
    )
    return body + b"--" + BOUNDARY + last


def scan(wire: bytes, *edges: int) -> FormScanner:
    """Feed a form, cut at these places."""
    scanner = FormScanner(BOUNDARY, frozenset({b"model", b"stream"}))
    for begin, end in pairwise([0, *edges, len(wire)]):
        scanner.feed(wire[begin:end])
    return scanner


WIRE = form(
    (b'Content-Disposition: form-data; name="prompt"', b'name="model"\r\n\r\nfake'),
    (FILE, b"\r\n--x-Yz\r\n--x-Yz0\x00\xff" * 9),
    (MODEL, "modèl".encode()),
    (b"Content-Disposition: form-data; name=stream", b"true"),
)


@given(st.sets(st.integers(1, len(WIRE) - 1)))
def test_it_does_not_matter_where_the_network_cuts(cuts: set[int]) -> None:
    fields = scan(WIRE, *sorted(cuts)).fields

    assert fields[b"model"].value == "modèl".encode()
    assert WIRE[fields[b"model"].begin : fields[b"model"].end] == "modèl".encode()
    assert fields[b"stream"].value == b"true"


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=4))
def test_no_bytes_do_harm(junk: bytes, cuts: list[int]) -> None:
    """Case 136."""
    for wire in (junk, b"--" + BOUNDARY + junk, WIRE[:80] + junk + WIRE[80:]):
        scan(wire, *sorted(min(cut, len(wire)) for cut in cuts))


def test_what_is_in_a_file_is_no_field() -> None:
    assert scan(form((FILE, b"x" * 100))).fields == {}


def test_a_part_may_be_empty_and_a_form_too() -> None:
    assert scan(form((MODEL, b""))).fields[b"model"].value == b""
    assert scan(b"--" + BOUNDARY + b"--\r\n").fields == {}
    assert scan(form((b"X: y", b"a"), (MODEL, b"m"))).fields[b"model"].value == b"m"


def test_a_part_that_never_ends_is_no_field_yet() -> None:
    assert scan(form((MODEL, b"m"))[:-8]).fields == {}


def test_of_a_name_that_comes_twice_the_last_counts_as_in_engines() -> None:
    assert scan(form((MODEL, b"a"), (MODEL, b"b"))).fields[b"model"].value == b"b"


@pytest.mark.parametrize(
    "wire",
    [
        form((MODEL, b"m" * (MAX_FIELD_BYTES + 100)))[:-20],
        b"--" + BOUNDARY + b"\r\n" + b"x" * (MAX_PART_HEAD_BYTES + 1),
        b"--" + BOUNDARY + b" " * (MAX_PART_HEAD_BYTES + 1),
    ],
)
def test_there_are_bounds(wire: bytes) -> None:
    with pytest.raises(FormError):
        scan(wire)


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        (b"multipart/form-data; boundary=abc", b"abc"),
        (b'multipart/form-data; charset=utf-8; boundary="a b;c"', b"a b;c"),
        (b"Multipart/Form-Data;boundary=----WebKit", b"----WebKit"),
        (b"multipart/form-data", None),
        (b"application/json; boundary=abc", None),
        (b"", None),
    ],
)
def test_the_boundary_is_in_the_content_type(content_type: bytes, boundary: bytes | None) -> None:
    assert boundary_of(content_type) == boundary
