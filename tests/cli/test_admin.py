"""Asking a gateway, and what is said when it does not answer."""

import httpx
import pytest

from gateway.cli.admin import KEY_ENV, REFUSED, UNREACHABLE, Admin, GatewayError, printable


def asking(answer: httpx.Response | Exception, url: str = "http://gw:1/") -> Admin:
    def respond(request: httpx.Request) -> httpx.Response:
        if isinstance(answer, Exception):
            raise answer
        answer.headers["x-asked"] = request.headers.get("authorization", "")
        answer.headers["x-path"] = request.url.raw_path.decode()
        return answer

    return Admin(url, httpx.MockTransport(respond))


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_ENV, "k1")
    answer = httpx.Response(200, json={"a": 1})

    with asking(answer) as admin:
        assert admin.get("requests", "a/b?c") == {"a": 1}
    assert answer.headers["x-asked"] == "Bearer k1"
    assert answer.headers["x-path"] == "/admin/requests/a%2Fb%3Fc"


def test_a_key_that_no_header_can_hold_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_ENV, "schlüssel")

    with pytest.raises(GatewayError, match=KEY_ENV) as told:
        asking(httpx.Response(200))
    assert told.value.code == 2


@pytest.mark.parametrize(
    ("answer", "said", "code"),
    [
        pytest.param(
            httpx.ConnectError("refused"),
            "no gateway answers at http://gw:1",
            UNREACHABLE,
            id="gone",
        ),
        pytest.param(httpx.ReadTimeout(""), "(ReadTimeout)", UNREACHABLE, id="mute"),
        pytest.param(httpx.Response(200, text="<html>"), "no HexSage", UNREACHABLE, id="a page"),
        pytest.param(httpx.Response(200, json=[1]), "no HexSage", UNREACHABLE, id="other JSON"),
        pytest.param(httpx.Response(401, json={}), "is not set", REFUSED, id="no key"),
        pytest.param(
            httpx.Response(404, json={"error": {"message": "Unknown."}}),
            "Unknown.",
            REFUSED,
            id="404",
        ),
        pytest.param(httpx.Response(500, json={}), "status 500", REFUSED, id="500"),
    ],
)
def test_what_goes_wrong_is_a_sentence(
    answer: httpx.Response | Exception,
    said: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(KEY_ENV, raising=False)
    with asking(answer) as admin, pytest.raises(GatewayError) as raised:
        admin.get("overview")

    assert said in str(raised.value)
    assert raised.value.code == code


def test_a_wrong_key_is_named_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_ENV, "hidden")
    with asking(httpx.Response(401, json={})) as admin, pytest.raises(GatewayError) as raised:
        admin.get("overview")

    assert f"{KEY_ENV} is not its key" in str(raised.value)
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize("url", ["gw", "ftp://gw", "http:///x", ""])
def test_an_address_that_is_none_is_named(url: str) -> None:
    with Admin(url) as admin, pytest.raises(GatewayError, match="--url") as raised:
        admin.get("overview")

    assert raised.value.code == 2


def test_no_text_can_steer_the_terminal() -> None:
    told = {"w\x1b]0;": ["\x1b[2J", "naïve ▲", {"x": "a\nb\x9b1m"}, 3, None, True]}

    assert printable(told) == {"w?]0;": ["?[2J", "naïve ▲", {"x": "a?b?1m"}, 3, None, True]}
