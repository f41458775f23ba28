"""Plug-ins: what a package adds to perfscope, declared once; found through the entry points ``perfscope.plugins``.

perfscope's own plug-ins (`perfscope/plugins/`) are registered in its ``pyproject.toml`` in the same way as those of
other packages. A declaration holds names, ``module`` or ``module:attribute``, which are imported when they are used.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from perfscope.model.errors import log_failure

if TYPE_CHECKING:
    from perfscope.model.finding import Subject

GROUP = "perfscope.plugins"

_log = logging.getLogger(__name__)
_NOTHING: Mapping[str, Any] = MappingProxyType({})

# Named tuples: making a dataclass takes ten times as long, and every command imports this module.


class RuleHome(NamedTuple):
    """Where a rule is, and what must be known of it before it is imported."""

    module: str
    needs: tuple[str, ...] = ()
    """Keys of ``Trace.recorded``; without them the rule abstains and is not imported."""
    judges: tuple[Subject, ...] = ()
    """Subjects of its findings besides the recording of one process."""
    device_times: Literal["", "idle", "work"] = ""
    """Times of the device that it judges: it abstains if they cannot be true (`analyzers/doubts.py`)."""
    fix_calls: tuple[str, ...] = ()
    """Last names of the calls or decorators that its fix changes (`analyzers/fix_lines.py`)."""
    compares_digests: bool = False
    """Whether its ``compare`` reads only what `analyzers/digest.py` keeps of a trace, so that ``--scheduler`` works."""


class Recording(NamedTuple):
    """Data that a plug-in records in all steps of a run, in place of a profile."""

    what: str
    """Description in `docs/model.md` and in rules that lack it."""
    recorder: str
    """Class that records in the user's process (`perfscope.profiler.session.recorders.Recorder`)."""
    tools: tuple[str, ...]
    """Names in the manifest of a run; the prefix ``torch_`` or ``jax_`` is the framework."""
    available: str
    """Function that returns the reason why nothing can be recorded in this process, or ``None``."""
    read: str
    """Function of a path that returns the recording, with ``notes``; it may raise ``DataError``."""
    steps: bool = False
    """Whether ``--steps`` selects the recorded steps, from step 0 on."""


class Checks(NamedTuple):
    """A part of `perfscope doctor`."""

    title: str
    find: str
    """Function that returns a list of ``perfscope.model.environment.Check``."""


class Plugin(NamedTuple):
    """Additions of a package. If two names are equal, perfscope's core comes first, then the plug-ins by name."""

    name: str
    commands: Mapping[str, str] = _NOTHING
    """Verb -> click command; ``compare VERB``, ``advise VERB``: a form of that group."""
    comparers: Mapping[str, str] = _NOTHING
    """Name -> module with ``accepts(base, head)`` and ``compare(base, head, outputs, notes)``, for `perfscope compare`
    of sides of different kinds."""
    tasks: Mapping[str, str] = _NOTHING
    """Verb -> heading in the help (`perfscope.commands.TASKS`, or a new one)."""
    options: Mapping[str, tuple[str, ...]] = _NOTHING
    """Verb of the core (``compare runs``) -> ``click.Option`` objects with callbacks (``expose_value=False``)."""
    recordings: Mapping[str, Recording] = _NOTHING
    """Key of ``Trace.recorded`` and ``Trace.documents`` -> its recording."""
    results: Mapping[str, str] = _NOTHING
    """Key of ``Analysis.results`` and of the JSON report -> function of a trace; ``None`` if there is no result."""
    tables: Mapping[str, str] = _NOTHING
    """Name -> ``ResultTable`` (`docs/adding-a-result.md`)."""
    report: str = ""
    """Module with ``sections(analysis)`` and ``facts(analysis)``: parts of every report, and sentences for its head."""
    rules: Mapping[str, RuleHome] = _NOTHING
    """Id -> rule."""
    readers: Mapping[str, str] = _NOTHING
    """Format -> module with ``sniff(path, head)`` and ``read(path)``; of files that report on kernels of another
    recording also ``JOINS``, their endings, and ``attach(trace, path)``."""
    format_words: Mapping[str, str] = _NOTHING
    """Format -> its name in errors, in the plural; without one the format itself."""
    kernel_notes: str = ""
    """Function of a trace with documents: name of a kernel -> what limits it, which tables of kernels show."""
    interventions: Mapping[str, str] = _NOTHING
    """Name -> ``Intervention`` (`perfscope try`)."""
    exports: Mapping[str, str] = _NOTHING
    """Format -> module with ``SUFFIX``, ``FOLDER`` and ``write(subject, target)`` (`perfscope export`)."""
    checks: Mapping[str, Checks] = _NOTHING
    """Key in the JSON of `perfscope doctor` -> its checks."""
    names: Mapping[str, str] = _NOTHING
    """Public name of ``perfscope``, or ``figures.NAME`` -> object."""
    pages: Mapping[str, str] = _NOTHING
    """Name in the address -> page of the dashboard (`perfscope.dashboards.web.pages`)."""
    works: Mapping[str, str] = _NOTHING
    """Kind -> module that prepares data of a page in a child of the server (`dashboards/web/server/works.py`)."""
    documents: Mapping[str, str] = _NOTHING
    """Name in the schema (``perfscope.NAME/1``) of JSON documents besides recordings -> module that reads them."""
    costs: str = ""
    """Module that declares costs of kernels (`perfscope.kernel_cost`) when it is imported, before an analysis."""
    scale_out: str = ""
    """Module that reads files at URLs and works on clusters, with the functions of `plugins/scale_out/remote.py`."""


class Entry(NamedTuple):
    """An entry point: a name, what it points at, and the distribution (``your_package-1.0``) that has it."""

    name: str
    home: str
    distribution: str


def entries() -> tuple[Entry, ...]:
    """Entry points of the group in all packages on ``sys.path``, sorted by name."""
    return _on_path(tuple(sys.path))


def plugins() -> tuple[Plugin, ...]:
    """All plug-ins, sorted by name. One that cannot be loaded is logged and left out.

    An entry point whose module is missing is ignored: metadata may be of another version than the files.
    """
    return _loaded(entries())


def named(kind: str) -> dict[str, Any]:
    """Declarations of all plug-ins of one kind, such as ``"commands"``: name -> value."""
    found: dict[str, Any] = {}
    for plugin in plugins():
        for name, value in getattr(plugin, kind).items():
            found.setdefault(name, value)
    return found


def load(home: str) -> Any:
    """Import ``module`` or ``module:attribute``; ``ImportError`` or ``AttributeError`` if it is missing."""
    module, _, attribute = home.partition(":")
    loaded = importlib.import_module(module)
    return getattr(loaded, attribute) if attribute else loaded


@cache
def _loaded(found: tuple[Entry, ...]) -> tuple[Plugin, ...]:
    declared = []
    for entry in found:
        try:
            plugin = load(entry.home)
            if not isinstance(plugin, Plugin):
                raise TypeError(f"{entry.home} is not a Plugin")
            declared.append(plugin)
        except ModuleNotFoundError as error:
            if not f"{entry.home.partition(':')[0]}.".startswith(f"{error.name}."):
                log_failure(_log, f"plug-in {entry.name} cannot be loaded", error)
        except Exception as error:  # another author's broken package must not break every command
            log_failure(_log, f"plug-in {entry.name} cannot be loaded", error)
    return tuple(declared)


# `importlib.metadata` finds the same entry points, and its import takes 30 ms, a third of `perfscope --help`.

_SECTION = re.compile(rf"^\[(?:project\.entry-points\.\")?{re.escape(GROUP)}\"?\]\s*$(.*?)(?=^\[|\Z)", re.M | re.S)
_LINE = re.compile(r"^([^\s=#;][^=]*?)\s*=\s*\"?([\w.:]+)", re.MULTILINE)
_INFO = (".dist-info", ".egg-info")
_CHECKOUT = f"{os.path.dirname(__file__)}/../../pyproject.toml"  # noqa: PTH120 (a Path takes longer)
"""In a checkout, what perfscope registers; the metadata of its installation may be older."""


@cache
def _on_path(path: tuple[str, ...]) -> tuple[Entry, ...]:
    found = {entry.name: entry for entry in _entries(_CHECKOUT, "perfscope")}
    seen = {"perfscope"} if found else set()
    for folder in path:
        for name in _metadata(folder):
            distribution = name.rpartition(".")[0]
            key = re.sub(r"[-_.]+", "-", distribution.partition("-")[0]).lower()
            if key in seen:  # an older one that a folder earlier on the path hides
                continue
            seen.add(key)
            for entry in _entries(f"{folder or '.'}/{name}/entry_points.txt", distribution):
                found.setdefault(entry.name, entry)
    return tuple(found[name] for name in sorted(found))


def _metadata(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder or ".") if name.endswith(_INFO)]  # noqa: PTH208 (of each folder)
    except OSError:
        return []


def _entries(file: str, distribution: str) -> Iterator[Entry]:
    try:
        with open(file, encoding="utf-8", errors="replace") as stream:  # noqa: PTH123 (a Path each takes longer)
            text = stream.read()
    except OSError:
        return
    section = _SECTION.search(text)
    for name, home in _LINE.findall(section.group(1)) if section else ():
        yield Entry(name, home, distribution)
