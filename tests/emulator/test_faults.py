"""Faults: read strictly, because a typo would be a test that tests nothing."""

import pytest

from gateway.emulator.faults import NO_FAULTS, Faults, read_faults


def test_faults_are_read() -> None:
    assert read_faults(b'{"stall": true, "slow": 3, "drop_rate": 0.5}') == Faults(
        stall=True, slow=3, drop_rate=0.5
    )
    assert read_faults(b"") == read_faults(b"{}") == NO_FAULTS


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "unexpected end"),
        (b"[]", "JSON object"),
        (b'{"stal": true}', "no fault 'stal'"),
        (b'{"stall": 1}', "stall must be true or false"),
        (b'{"slow": true}', "slow must be a number"),
        (b'{"slow": 0}', "slow must be > 0"),
        (b'{"error_rate": 1.5}', "error_rate must lie in"),
    ],
)
def test_what_is_no_fault_is_an_error(body: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_faults(body)
