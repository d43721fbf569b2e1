"""What is wrong between settings that are each fine."""

from collections.abc import Iterable, Iterator

from gateway.config.backends import BackendEntry
from gateway.config.settings import Settings
from gateway.config.yaml_file import Location


def contradictions(settings: Settings) -> list[tuple[Location, str]]:
    """Return what is wrong, and the place of each."""
    wrong: list[tuple[Location, str]] = [
        (("backends", *location), message) for location, message in given_twice(settings.backends)
    ]
    aliases = settings.aliases
    for name, target in aliases.items():
        if target in aliases:
            wrong.append((("models", name, "target"), f"'{target}' is itself an alias"))
    for name, entry in settings.workflows.items():
        try:
            entry.to_core(name)
        except ValueError as error:
            wrong.append((("workflows", name), str(error)))
    if not (settings.is_loopback or settings.allow_anonymous or settings.keys_file):
        message = (
            f"{settings.host} is reachable from outside: set keys_file, or allow_anonymous to "
            "serve anybody"
        )
        wrong.append((("host",), message))
    return wrong


def given_twice(backends: Iterable[BackendEntry]) -> Iterator[tuple[tuple[int, str], str]]:
    """Tell of names and of engines that are there more than once, and of the place and the key.

    A server of several models, or with a limit for each key, may be several backends.
    """
    names: set[str] = set()
    engines: dict[tuple[str | None, ...], str] = {}
    for index, backend in enumerate(backends):
        url = backend.url.rstrip("/").removesuffix("/v1")
        first = engines.setdefault((url, backend.model, backend.api_key_env), backend.name)
        if backend.name in names:
            yield (index, "name"), f"'{backend.name}' is used twice"
        elif first != backend.name:
            message = f"'{backend.name}' and '{first}' are one engine: its memory would count twice"
            yield (index, "url"), message
        names.add(backend.name)
