"""Admin: asking a running gateway, for the commands that look at one."""

import argparse
import os
from typing import Any
from urllib.parse import quote

import httpx

DEFAULT_URL = "http://127.0.0.1:8080"
KEY_ENV = "HEXSAGE_ADMIN_KEY"
TIMEOUT_S = 10.0

OK = 0
REFUSED = 1
"""The gateway answered, and said no."""
UNREACHABLE = 3

EXIT_CODES = """\
exit codes: 0 done, 1 the gateway says no (unknown request, wrong key), 2 the arguments make no
sense, 3 the gateway cannot be reached"""


class GatewayError(Exception):
    """The gateway said no, or nothing; the message is a sentence, `code` the exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare how the gateway is found."""
    parser.add_argument(
        "--url", default=DEFAULT_URL, help="the gateway, or its admin port (default: %(default)s)"
    )


class Admin:
    """A gateway's /admin. The key is taken from the environment, where no `ps` shows it."""

    def __init__(self, url: str, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        self._key = os.environ.get(KEY_ENV)
        if self._key is not None and not self._key.isascii():
            raise GatewayError(f"{KEY_ENV}: a key has only ASCII characters", 2)
        headers = {"authorization": f"Bearer {self._key}"} if self._key else {}
        self._client = httpx.Client(headers=headers, timeout=TIMEOUT_S, transport=transport)

    def __enter__(self) -> "Admin":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(self, *path: str) -> dict[str, Any]:
        """Return what the gateway tells at /admin/…; GatewayError if it does not."""
        address = "/".join((self.url, "admin", *(quote(part, safe="") for part in path)))
        try:
            answer = self._client.get(address)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol):
            raise GatewayError(
                f"--url: '{self.url}' is no address such as {DEFAULT_URL}", 2
            ) from None
        except httpx.HTTPError as error:
            told = str(error) or type(error).__name__
            raise GatewayError(
                f"no gateway answers at {self.url} ({told}): is it running? --url names another",
                UNREACHABLE,
            ) from None
        return self._read(answer)

    def _read(self, answer: httpx.Response) -> dict[str, Any]:
        try:
            told = answer.json()
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise GatewayError(f"what answers at {self.url} is no HexSage gateway", UNREACHABLE)
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            fault = "is not its key" if self._key else "is not set"
            raise GatewayError(
                f"the gateway at {self.url} asks for its admin key: {KEY_ENV} {fault}", REFUSED
            )
        if not answer.is_success:
            error = told.get("error")
            message = error.get("message") if isinstance(error, dict) else None
            raise GatewayError(str(message or f"status {answer.status_code}"), REFUSED)
        clean: dict[str, Any] = printable(told)
        return clean


def printable(value: Any) -> Any:
    """Return JSON in which no text can steer a terminal: clients name their workflows freely."""
    if isinstance(value, str):
        return "".join(char if char.isprintable() else "?" for char in value)
    if isinstance(value, list):
        return [printable(one) for one in value]
    if isinstance(value, dict):
        return {printable(name): printable(one) for name, one in value.items()}
    return value
