"""Where workers listen: each on sockets of its own at the same address, so that the kernel deals.

With one socket for all, whoever wakes first takes every connection that waits, and keeps it for
long: agents' connections live. With SO_REUSEPORT each new connection belongs to one worker, and
those of a worker that dies go to the others.
"""

import socket
from errno import EACCES, EADDRINUSE


def reserve(host: str, port: int) -> list[socket.socket]:
    """Bind the addresses of a host without listening: they are ours, and children may share them.

    OSError if somebody else listens there: another gateway would otherwise take half the calls.
    """
    probe(host, port)
    return _bound(_addresses(host, port))


def probe(host: str, port: int) -> None:
    """Raise OSError if the addresses of a host cannot be listened at, most likely for somebody
    else does."""
    for family, address in _addresses(host, port):
        with _new(family) as alone:
            alone.bind(address)


def refusal(host: str, port: int, error: OSError) -> str:
    """Return what is said of an address that cannot be listened at: the key to mend, and why."""
    key = "port" if error.errno in (EACCES, EADDRINUSE) else "host"
    return f"{key}: {host}:{port} cannot be listened at ({error.strerror})"


def shared(host: str, port: int) -> list[socket.socket]:
    """Bind the addresses of a host that the parent has reserved, for listening."""
    return _bound(_addresses(host, port))


def port_of(sockets: list[socket.socket]) -> int:
    """Return the port, which the kernel may have chosen."""
    port: int = sockets[0].getsockname()[1]
    return port


Address = tuple[socket.AddressFamily, tuple[str, int]]


def _addresses(host: str, port: int) -> list[Address]:
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, (str(at[0]), int(at[1]))) for family, _, _, _, at in found))


def _bound(addresses: list[Address]) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    for family, (host, port) in addresses:
        sock = _new(family)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # If the kernel chooses a port, it is the same one for all addresses.
        sock.bind((host, port or (port_of(sockets) if sockets else 0)))
        sock.setblocking(False)
        sockets.append(sock)
    return sockets


def _new(family: socket.AddressFamily) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return sock
