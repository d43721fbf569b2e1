"""Operations: what operators do to a running gateway's fleet."""

from collections.abc import Callable, Sequence

from pydantic import ValidationError

from gateway.api.fleet import BadSettings
from gateway.config.backends import BackendEntry
from gateway.config.contradictions import given_twice
from gateway.core.events import BackendTrusted, Event
from gateway.core.types import BackendId
from gateway.engines import Engines
from gateway.mistakes import ConfigError, plainly
from gateway.reload import Reloader


class Operations:
    """Backends that are added here last until the configuration is read anew."""

    def __init__(
        self, engines: Engines, feed: Callable[[Event], None], reloader: Reloader | None
    ) -> None:
        self._engines = engines
        self._feed = feed
        self._reloader = reloader

    def names(self) -> frozenset[str]:
        """Every backend."""
        return frozenset(self._engines.entries)

    def add(self, wish: dict[str, object]) -> None:
        """Add a backend; BadSettings if the entry is none."""
        try:
            entry = BackendEntry.model_validate(wish)
            known = {other.api_key_env for other in self._engines.entries.values()}
            if entry.api_key_env is not None and entry.api_key_env not in known:
                # Whoever may add backends must not be able to have any variable sent to them.
                raise BadSettings("api_key_env: no configured backend uses this variable")
            for (_, key), message in given_twice([*self._engines.entries.values(), entry]):
                raise BadSettings(f"{key}: {message}")
            self._engines.put(entry)
        except ValidationError as error:
            raise BadSettings(first_mistake(error)) from None
        except OSError as error:
            raise BadSettings(f"tls: {error}") from None

    def remove(self, name: str) -> None:
        """Take a backend out; its running calls are finished."""
        self._engines.remove(BackendId(name))

    def drain(self, name: str, *, drains: bool) -> None:
        """Give a backend nothing new, or let it have calls again."""
        self._engines.drain(BackendId(name), drains=drains)

    def trust(self, name: str) -> None:
        """Forget what calls have told against a backend."""
        self._feed(BackendTrusted(BackendId(name)))

    async def reload(self) -> Sequence[str]:
        """Read the configuration anew; return the settings that need a restart, or BadSettings."""
        if self._reloader is None:
            raise BadSettings("this gateway was started without a file")
        try:
            return await self._reloader.reload()
        except ConfigError as error:
            raise BadSettings(str(error)) from None


def first_mistake(error: ValidationError) -> str:
    """Return the first of a model's mistakes with its place."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {plainly(first)}"
