"""Certificates: the gateway's own, and those of backends."""

from pathlib import Path

from gateway.config.entry import Entry


class ServerTlsEntry(Entry):
    """The gateway's own certificate; files in PEM."""

    cert_file: Path
    """What clients are shown."""
    key_file: Path
    """Its key."""
    client_ca_file: Path | None = None
    """Clients must show a certificate that this authority has signed."""


class ClientTlsEntry(Entry):
    """How the gateway and a backend know each other; files in PEM."""

    ca_file: Path | None = None
    """Who may have signed the backend's certificate; None: whom the system trusts."""
    cert_file: Path | None = None
    """What the gateway shows of itself, with its key in the same file or in `key_file`."""
    key_file: Path | None = None
    """The key, where it is a file of its own."""
