"""A TOML file written by a user: tables with checked keys, and values with one-line errors."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfscope.model.errors import UsageError

MOST_FILE_BYTES = 1 << 20
"""Maximum file size: machines need some hundred bytes; a large job may list the ranks of each node."""
MOST_COUNT = 1 << 20
"""Maximum number of ranks, cards or devices; a larger number is a typing error."""


class UserTable:
    """One table of a file. Every error is a ``UsageError`` of one line: the option, the path, the key."""

    def __init__(self, where: str, values: dict[str, Any], keys: Sequence[str], prefix: str = "") -> None:
        """``where``: begins every error. ``keys``: allowed keys. ``prefix``: for example ``network.``."""
        self.where = where
        self._values = values
        self._prefix = prefix
        unknown = next((key for key in values if key not in keys), None)
        if unknown is not None:
            names = ", ".join(prefix + key for key in keys)
            raise UsageError(f"{where}: {prefix}{unknown[:60]}: unknown key; known: {names}")

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __getitem__(self, key: str) -> Any:
        """Return the value as written; ``None`` for a missing key."""
        return self._values.get(key)

    def error(self, key: str, problem: str) -> UsageError:
        """Return an error about a key, for the caller to raise."""
        return UsageError(f"{self.where}: {self._prefix}{key} {problem}")

    def text(self, key: str, longest: int = 500) -> str:
        """Return printable text of at most ``longest`` characters."""
        value = self[key]
        if not isinstance(value, str) or not value.strip() or len(value) > longest or not value.isprintable():
            raise self.error(key, "must be one line of text")
        return value.strip()

    def count(self, key: str, default: int | None = None) -> int:
        """Return a whole number from 1 to ``MOST_COUNT``; ``default`` for a missing key."""
        value = self._values.get(key, default)
        if type(value) is not int or not 1 <= value <= MOST_COUNT:
            raise self.error(key, f"must be a whole number from 1 to {MOST_COUNT:,}")
        return value

    def rate(self, key: str) -> float:
        """Return a positive number."""
        value = self[key]
        if type(value) not in (int, float) or not math.isfinite(value) or not 0 < value < 1e9:
            raise self.error(key, "must be a positive number below 1e9")
        return float(value)

    def table(self, key: str, keys: Sequence[str]) -> UserTable:
        """Return a table in this one."""
        value = self[key]
        if not isinstance(value, dict):
            raise self.error(key, "must be a table")
        return UserTable(self.where, value, keys, f"{self._prefix}{key}.")


def read_user_table(path: str | Path, option: str, keys: Sequence[str]) -> UserTable:
    """Read the top table of the file that an option names. ``UsageError`` if it is unreadable or invalid TOML."""
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
        raise UsageError(f"{where}: invalid TOML: {str(error)[:200]}") from error
