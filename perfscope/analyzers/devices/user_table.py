"""A TOML file that a user wrote: tables whose keys are checked, and values with errors of one line."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfscope.model.errors import UsageError

MOST_FILE_BYTES = 1 << 20
"""Some hundred bytes describe machines; the ranks of each node of a large job may be listed."""
MOST_COUNT = 1 << 20
"""A million: a number of ranks, cards or devices above it is a slip of the keyboard."""


class UserTable:
    """One table of a file. Every error is a ``UsageError`` of one line: the option, the path, the key."""

    def __init__(self, where: str, values: dict[str, Any], keys: Sequence[str], prefix: str = "") -> None:
        """``where``: stands in front of errors. ``keys``: those that there may be. ``prefix``: ``network.``."""
        self.where = where
        self._values = values
        self._prefix = prefix
        unknown = next((key for key in values if key not in keys), None)
        if unknown is not None:
            names = ", ".join(prefix + key for key in keys)
            raise UsageError(f"{where}: {prefix}{unknown[:60]}: no such key; known: {names}")

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __getitem__(self, key: str) -> Any:
        """The value as it was written; ``None`` for a key that is not there."""
        return self._values.get(key)

    def error(self, key: str, problem: str) -> UsageError:
        """An error about a key, to be raised."""
        return UsageError(f"{self.where}: {self._prefix}{key} {problem}")

    def text(self, key: str, longest: int = 500) -> str:
        """Printable text of at most ``longest`` characters."""
        value = self[key]
        if not isinstance(value, str) or not value.strip() or len(value) > longest or not value.isprintable():
            raise self.error(key, "is no text of a line")
        return value.strip()

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number from 1 to ``MOST_COUNT``; ``default`` where the key is not there."""
        value = self._values.get(key, default)
        if type(value) is not int or not 1 <= value <= MOST_COUNT:
            raise self.error(key, f"is no number from 1 to {MOST_COUNT:,}")
        return value

    def rate(self, key: str) -> float:
        """A positive number."""
        value = self[key]
        if type(value) not in (int, float) or not math.isfinite(value) or not 0 < value < 1e9:
            raise self.error(key, "is no rate")
        return float(value)

    def table(self, key: str, keys: Sequence[str]) -> UserTable:
        """A table in this one."""
        value = self[key]
        if not isinstance(value, dict):
            raise self.error(key, "is no table")
        return UserTable(self.where, value, keys, f"{self._prefix}{key}.")


def read_user_table(path: str | Path, option: str, keys: Sequence[str]) -> UserTable:
    """The top table of a file that an option names. ``UsageError`` for one that cannot be read or is no TOML."""
    where = f"{option} {path}"
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_FILE_BYTES + 1)
        if len(data) > MOST_FILE_BYTES:
            raise UsageError(f"{where}: larger than {MOST_FILE_BYTES >> 20} MiB")
        return UserTable(where, tomllib.loads(data.decode("utf-8")), keys)
    except OSError as error:
        raise UsageError(f"{where}: cannot be read: {(error.strerror or 'error').lower()}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: no TOML: {str(error)[:200]}") from error
