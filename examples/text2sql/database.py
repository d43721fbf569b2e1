"""What the agent may do with a database: read its schema, find values, run one query.

Queries come from a language model, so they run read-only, on a short leash.
"""

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

MAX_ROWS = 200
MAX_SECONDS = 2.0
STEPS_BETWEEN_LOOKS = 10_000
"""Virtual machine steps of SQLite between two looks at the clock."""
ALLOWED = frozenset(
    {
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_FUNCTION,
        sqlite3.SQLITE_RECURSIVE,
    }
)

_SQL_BLOCK = re.compile(r"```(?:sql(?:ite)?)?\s*(.*?)```", re.DOTALL | re.IGNORECASE)
_SELECT = re.compile(r"\b(?:select|with)\b.*", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a query: rows, or the error."""

    rows: tuple[tuple[object, ...], ...] = ()
    error: str | None = None

    def shown(self, most: int = 5) -> str:
        """Return it as a prompt shows it."""
        if self.error is not None:
            return f"error: {self.error}"
        lines = [" | ".join(str(cell) for cell in row) for row in self.rows[:most]]
        rest = len(self.rows) - len(lines)
        return "\n".join([*lines, f"... and {rest} more rows"] if rest else lines) or "(no rows)"

    @property
    def as_answer(self) -> frozenset[tuple[str, ...]] | None:
        """What two queries that say the same agree on, whatever the order; None: it failed."""
        if self.error is not None:
            return None
        return frozenset(tuple(_plain(cell) for cell in row) for row in self.rows)


class Database:
    """A SQLite file, read only."""

    def __init__(self, path: Path) -> None:
        self._uri = f"{path.resolve().as_uri()}?mode=ro"
        with self._connection() as connection:
            found = connection.execute(
                "SELECT name, sql FROM sqlite_master WHERE type = 'table' ORDER BY name"
            ).fetchall()
            self.tables: dict[str, str] = dict(found)
            """CREATE statements by table."""
            self._text_columns = [
                (table, column)
                for table in self.tables
                for _, column, kind, *_ in connection.execute(f'PRAGMA table_info("{table}")')
                if kind == "TEXT"
            ]

    def schema(self, tables: Sequence[str] | None = None) -> str:
        """Return the CREATE statements of some tables, or of all."""
        return "\n".join(self.tables[table] + ";" for table in tables or self.tables)

    def find(self, words: Sequence[str], most: int = 12) -> list[str]:
        """Return where values that contain one of the words stand: `table.column = 'value'`."""
        found: list[str] = []
        with self._connection() as connection:
            for table, column in self._text_columns:
                query = (
                    f'SELECT DISTINCT "{column}" FROM "{table}" WHERE instr(lower("{column}"), ?)'
                )
                for word in words:
                    for (value,) in connection.execute(f"{query} LIMIT 3", (word.lower(),)):
                        found.append(f"{table}.{column} = '{value}'")
        return list(dict.fromkeys(found))[:most]

    def run(self, sql: str) -> Ran:
        """Run one query; what it does wrong comes back as an error."""
        with self._connection() as connection:
            give_up_at = perf_counter() + MAX_SECONDS
            connection.set_progress_handler(
                lambda: perf_counter() > give_up_at, STEPS_BETWEEN_LOOKS
            )
            connection.set_authorizer(_only_reading)
            try:
                rows = connection.execute(sql).fetchmany(MAX_ROWS)
            # A Warning is what two statements in one string earn.
            except (sqlite3.Error, sqlite3.Warning) as error:
                return Ran(error=str(error))
            return Ran(rows=tuple(tuple(row) for row in rows))

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self._uri, uri=True)
        try:
            yield connection
        finally:
            connection.close()


def sql_in(text: str) -> str | None:
    """Return the query in a model's answer, or None if there is none."""
    block = _SQL_BLOCK.search(text)
    found = _SELECT.search(block[1] if block else text)
    return found[0].strip().rstrip(";").strip() if found else None


def _only_reading(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_OK if action in ALLOWED else sqlite3.SQLITE_DENY


def _plain(cell: object) -> str:
    return f"{cell:.4f}".rstrip("0").rstrip(".") if isinstance(cell, float) else str(cell)
