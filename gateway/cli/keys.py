"""`hexsage keys`: make, list and revoke the API keys of a keys file."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from gateway.keys_file import KeyEntry, hash_of, new_key, read_keys, write_keys
from gateway.mistakes import ConfigError, plainly

DEFAULT_FILE = Path("keys.yaml")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = (
        "Make, list and revoke API keys. The file holds hashes: a key is shown once, when it is "
        "made. A running gateway sees changes by itself."
    )
    parser.epilog = (
        "examples:\n"
        "  hexsage keys create team-a --models m1,gpt-x --rpm 600 --concurrency 32\n"
        "  hexsage keys create team-a-2026 --tenant team-a\n"
        "  hexsage keys list\n"
        "  hexsage keys revoke team-a"
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = actions.add_parser("create", help="make a key and show it, once")
    create.add_argument("name", help="unique; by this it is listed and revoked")
    create.add_argument("--tenant", help="who is charged (default: the key's name)")
    create.add_argument("--models", help="public names, with commas (default: all)")
    create.add_argument("--weight", type=float, help="share of a busy fleet (default 1)")
    create.add_argument("--queue-share", type=float, help="of the queue, up to 1")
    create.add_argument("--rpm", type=int, help="requests a minute")
    create.add_argument("--tpm", type=int, help="tokens a minute, prompts and answers together")
    create.add_argument("--concurrency", type=int, help="calls at once")
    show = actions.add_parser("list", help="say what keys there are")
    revoke = actions.add_parser("revoke", help="take keys out of the file")
    revoke.add_argument("names", nargs="+", metavar="name")
    for action in (create, show, revoke):
        action.add_argument("--file", type=Path, default=DEFAULT_FILE, help="default: keys.yaml")


def run(arguments: argparse.Namespace) -> int:
    """Return 0 if it was done."""
    path: Path = arguments.file
    try:
        entries = read_keys(path) if path.exists() or arguments.action != "create" else ()
        if arguments.action == "create":
            return _create(arguments, path, entries)
        if arguments.action == "revoke":
            return _revoke(arguments.names, path, entries)
    except (ConfigError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    for entry in entries:
        sys.stdout.write(_line(entry) + "\n")
    return 0


def _create(arguments: argparse.Namespace, path: Path, entries: Sequence[KeyEntry]) -> int:
    wished = {
        name: value
        for name in ("name", "tenant", "weight", "queue_share", "rpm", "tpm", "concurrency")
        if (value := getattr(arguments, name)) is not None
    }
    if arguments.models is not None:
        wished["models"] = tuple(arguments.models.split(","))
    key = new_key()
    try:
        entry = KeyEntry.model_validate({**wished, "sha256": hash_of(key)})
    except ValidationError as error:
        for item in error.errors():
            sys.stderr.write(f"{'.'.join(map(str, item['loc']))}: {plainly(item)}\n")
        return 1
    write_keys(path, [*entries, entry])
    sys.stdout.write(f"{key}\n")
    sys.stderr.write(f"'{entry.name}' is in {path}. This is the only time the key is shown.\n")
    return 0


def _revoke(names: Sequence[str], path: Path, entries: Sequence[KeyEntry]) -> int:
    unknown = sorted(set(names) - {entry.name for entry in entries})
    if unknown:
        sys.stderr.write(f"{path} has no key named {', '.join(unknown)}\n")
        return 1
    write_keys(path, [entry for entry in entries if entry.name not in names])
    return 0


def _line(entry: KeyEntry) -> str:
    """Return a key as people list it; eight digits of its hash tell it from others."""
    told = entry.model_dump(exclude_defaults=True, exclude={"name", "sha256", "tenant"})
    told["models"] = ",".join(entry.models) if entry.models is not None else None
    more = "  ".join(f"{name}={value}" for name, value in told.items() if value is not None)
    return f"{entry.name}  tenant={entry.owner}  sha256={entry.sha256[:8]}…  {more}".rstrip()
