"""Every kind of engine can be built, and knows where it generates."""

import pytest

from gateway.emulator.dialects import DIALECTS
from tests.emulator.asgi import CHAT, some_options


@pytest.mark.parametrize("kind", DIALECTS)
def test_every_kind_speaks_the_chat_api(kind: str) -> None:
    assert CHAT in DIALECTS[kind](some_options(kind=kind)).generates
