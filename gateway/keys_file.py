"""keys.yaml: the API keys, stored as hashes, and what each may do.

Keys are 256 random bits, so one round of SHA-256 hides them: there is nothing to guess. The key
itself is shown once, when it is made, and never stored or logged.
"""

import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from secrets import token_urlsafe
from tempfile import NamedTemporaryFile
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.config.yaml_file import YamlFile, dotted
from gateway.core.types import ANONYMOUS
from gateway.mistakes import ConfigError, plainly

PREFIX = "hsk-"

Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._@-]+$")]
Limit = Annotated[int, Field(gt=0)]


class KeyEntry(BaseModel):
    """One key. A limit that is absent is none; 0 is refused: to forbid everything, revoke."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name
    """Unique; by this it is listed and revoked."""
    tenant: Name | None = None
    """Who is charged; several keys may have one tenant. None: the key's name."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    models: tuple[str, ...] | None = None
    """Public names of the models that it may use; None: all."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """The tenant's share of a busy fleet, against other tenants' weights."""
    queue_share: Annotated[float, Field(gt=0, le=1)] | None = None
    """The share of the queue that the tenant may fill; None: `queue.max_tenant_share`."""
    rpm: Limit | None = None
    tpm: Limit | None = None
    concurrency: Limit | None = None

    @property
    def owner(self) -> str:
        """The tenant."""
        return self.tenant or self.name


def new_key() -> str:
    """Return a key that nobody has had."""
    return PREFIX + token_urlsafe(32)


def hash_of(key: str | bytes) -> str:
    """Return what is stored of a key."""
    return sha256(key.encode() if isinstance(key, str) else key).hexdigest()


def read_keys(path: Path) -> tuple[KeyEntry, ...]:
    """Return the keys, or raise ConfigError with every mistake there is."""
    document = YamlFile.read(path)
    mistakes = list(document.mistakes)
    unknown = sorted(set(document.content) - {"keys"})
    mistakes += [
        f"{path}:{document.line_of((name,))}: {name}: is no key that HexSage knows"
        for name in unknown
    ]
    entries: list[KeyEntry] = []
    listed = document.content.get("keys") or []
    if not isinstance(listed, list):
        listed = []
        mistakes.append(f"{path}:{document.line_of(('keys',))}: keys: must be a list")
    for index, given in enumerate(listed):
        try:
            entries.append(KeyEntry.model_validate(given))
        except ValidationError as error:
            for item in error.errors():
                place = ("keys", index, *item["loc"])
                line = document.line_of(place)
                mistakes.append(f"{path}:{line}: {dotted(place)}: {plainly(item)}")
    mistakes += [f"{path}: {mistake}" for mistake in _contradictions(entries)]
    if mistakes:
        raise ConfigError(mistakes)
    return tuple(entries)


def write_keys(path: Path, entries: Sequence[KeyEntry]) -> None:
    """Replace the file in one step; only its owner may read it. ConfigError for contradictions."""
    mistakes = [f"{path}: {mistake}" for mistake in _contradictions(entries)]
    if mistakes:
        raise ConfigError(mistakes)
    listed = [entry.model_dump(mode="json", exclude_defaults=True) for entry in entries]
    text = "# Written by `hexsage keys`; comments are not kept.\n" + yaml.safe_dump(
        {"keys": listed}, sort_keys=False
    )
    try:
        _replace(path.resolve(), text)  # a symbolic link stays one
    except OSError as error:
        raise ConfigError([f"{path}: cannot be written ({error.strerror})"]) from None


def _replace(path: Path, text: str) -> None:
    with NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False) as file:
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _contradictions(entries: Sequence[KeyEntry]) -> list[str]:
    mistakes: list[str] = []
    names: set[str] = set()
    hashes: set[str] = set()
    tenants: dict[str, KeyEntry] = {}
    for entry in entries:
        if entry.name in names:
            mistakes.append(f"the name '{entry.name}' is used twice")
        if entry.sha256 in hashes:
            mistakes.append(f"the key of '{entry.name}' is there twice")
        if entry.owner == ANONYMOUS:
            mistakes.append(f"'{ANONYMOUS}' is the tenant of callers without a key")
        names.add(entry.name)
        hashes.add(entry.sha256)
        first = tenants.setdefault(entry.owner, entry)
        if (first.weight, first.queue_share) != (entry.weight, entry.queue_share):
            mistakes.append(
                f"'{first.name}' and '{entry.name}' give tenant '{entry.owner}' different "
                "weights or queue shares"
            )
    return mistakes
