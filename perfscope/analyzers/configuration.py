"""``[tool.perfscope]`` in ``pyproject.toml``: settings of a project for every analysis.

::

    [tool.perfscope]
    fail-on = "medium"                  # as --fail-on of analyze and compile
    device = "H200"                     # as --device
    topology = "cluster.toml"           # as --topology; relative to this file
    ignore = ["third_party/*"]          # findings in these files are silenced

    [tool.perfscope.rules.input_stall]
    off = "CI reads from a ramdisk"     # the reason; the rule is then not evaluated

    [tool.perfscope.rules.host_sync]
    IDLE_SHARE = 0.05                   # a threshold, as `perfscope explain host_sync` lists it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from perfscope.analyzers.registry import load_rule
from perfscope.analyzers.thresholds import Thresholds, thresholds_of
from perfscope.model.errors import UsageError, did_you_mean
from perfscope.model.severity import SEVERITIES

FILE = "pyproject.toml"
KEYS = ("device", "fail-on", "ignore", "rules", "topology")
OFF = "off"


class Configuration(Struct, frozen=True, kw_only=True):
    """Settings of a project for every analysis; command-line options take precedence."""

    device: str | None = None
    fail_on: str | None = None
    topology: str | None = None
    ignore: tuple[str, ...] = ()
    """Path patterns; findings in matching files are silenced."""
    off: Mapping[str, str] = field(default_factory=dict)
    """Rule -> reason for turning it off."""
    thresholds: Thresholds = field(default_factory=dict)
    """Rule -> name of the threshold -> value."""

    def sentences(self) -> tuple[str, ...]:
        """Return one sentence per changed threshold. Rules that are turned off report that themselves."""
        return tuple(
            f"{rule}.{name} = {value:g} ({FILE})"
            for rule, values in self.thresholds.items()
            for name, value in values.items()
        )


NO_CONFIGURATION = Configuration()


def find_configuration(folder: Path | None = None) -> Configuration:
    """Return the configuration of the nearest ``pyproject.toml`` with ``[tool.perfscope]``, from ``folder`` upward.

    ``folder``: the working directory by default. ``UsageError`` in one line, beginning with the file, for invalid
    content.
    """
    try:
        start = Path.cwd() if folder is None else folder.absolute()
    except FileNotFoundError:  # the working directory no longer exists
        return NO_CONFIGURATION
    for parent in (start, *start.parents):
        table = _table_of(parent / FILE)
        if table is not None:
            return _Reader(parent / FILE).configuration(table)
    return NO_CONFIGURATION


def _table_of(file: Path) -> Mapping[str, Any] | None:
    """Return ``[tool.perfscope]`` of a file; ``None`` without the table or without a readable file."""
    if not file.exists():
        return None
    import tomllib

    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError:
        return None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: invalid TOML: {str(error)[:200]}") from error
    tool = document.get("tool")
    table = tool.get("perfscope") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise UsageError(f"{file}: tool.perfscope is not a table")
    return table


class _Reader:
    """Check the values of one file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def configuration(self, table: Mapping[str, Any]) -> Configuration:
        values = {self._known(key, KEYS, "[tool.perfscope] "): value for key, value in table.items()}
        topology = self._text(values, "topology")
        off, thresholds = self._rules(values.get("rules", {}))
        return Configuration(
            device=self._text(values, "device"),
            fail_on=self._choice(values, "fail-on", SEVERITIES),
            topology=None if topology is None else str(self._file.parent / topology),
            ignore=self._texts(values, "ignore"),
            off=off,
            thresholds=thresholds,
        )

    def _rules(self, table: Any) -> tuple[dict[str, str], dict[str, dict[str, float]]]:
        if not isinstance(table, dict):
            raise self._error("rules", "is not a table of rules")
        off: dict[str, str] = {}
        thresholds: dict[str, dict[str, float]] = {}
        for name, values in table.items():
            key = f"rules.{name}"
            try:
                rule = load_rule(name)
            except UsageError as error:
                raise UsageError(f"{self._file}: [tool.perfscope.rules] {error}") from error
            if not isinstance(values, dict):
                raise self._error(key, f'is not a table; write [tool.perfscope.{key}] and {OFF} = "the reason"')
            known = {item.name: item for item in thresholds_of(rule)}
            for written, value in values.items():
                item = self._known(written, (OFF, *known), f"[tool.perfscope.{key}] ")
                if item != OFF:
                    thresholds.setdefault(rule.id, {})[item] = self._number(f"{key}.{item}", value)
                elif not isinstance(value, str) or not value.strip():
                    raise self._error(f"{key}.{OFF}", "must be a string: the reason")
                else:
                    off[rule.id] = " ".join(value.split())
        return off, thresholds

    def _known(self, key: str, known: Sequence[str], where: str) -> str:
        """Return the key in our spelling; case, dashes and underscores are ignored."""
        plain = {name.lower().replace("_", "-"): name for name in known}
        name = plain.get(key.lower().replace("_", "-"))
        if name is None:
            hint = did_you_mean(key, known) or f"; known: {', '.join(known)}"
            raise UsageError(f"{self._file}: {where}{key[:60]}: unknown key{hint}")
        return name

    def _text(self, values: Mapping[str, Any], key: str) -> str | None:
        value = values.get(key)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise self._error(key, "must be a string")
        return value

    def _choice(self, values: Mapping[str, Any], key: str, choices: Sequence[str]) -> str | None:
        value = self._text(values, key)
        if value is not None and value not in choices:
            raise self._error(key, f"must be one of {', '.join(choices)}")
        return value

    def _texts(self, values: Mapping[str, Any], key: str) -> tuple[str, ...]:
        value = values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
            raise self._error(key, "must be a list of strings")
        return tuple(value)

    def _number(self, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise self._error(key, "must be a number of at least 0")
        return value

    def _error(self, key: str, problem: str) -> UsageError:
        return UsageError(f"{self._file}: tool.perfscope.{key} {problem}")
