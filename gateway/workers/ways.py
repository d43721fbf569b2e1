"""Ways: a worker's clients by backend. Without one, calls fail as if nobody listened there."""

from collections.abc import Iterator, Mapping

from gateway.backends.base import Answer, BackendClient, Call, ConnectFailed, Listener
from gateway.core.types import BackendId


class Ways(Mapping[BackendId, BackendClient]):
    """The clients that there are, and for every other backend one that reaches nobody.

    The scheduler process decides where a call goes, and it knows nothing of files, such as those of
    a backend's TLS, that this worker could not read.
    """

    def __init__(self, clients: Mapping[BackendId, BackendClient]) -> None:
        self._clients = clients

    def __getitem__(self, name: BackendId) -> BackendClient:
        return self._clients.get(name) or NoWay(name)

    def __iter__(self) -> Iterator[BackendId]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)


class NoWay:
    """A client that makes no connection."""

    def __init__(self, name: BackendId) -> None:
        self._name = name

    async def open(
        self,
        call: Call,  # noqa: ARG002
        listener: Listener,  # noqa: ARG002
        *,
        engine_priority: int,  # noqa: ARG002
        attempt: int,  # noqa: ARG002
    ) -> Answer:
        """See BackendClient."""
        raise ConnectFailed(f"this worker has no way to {self._name}: the log says why")

    async def close(self) -> None:
        """See BackendClient."""
