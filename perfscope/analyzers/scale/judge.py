"""From paths to an analysis: sets of many traces over digests, everything else with all tables in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from perfscope.analyzers.engine import Analysis, Examined, analyze, chosen_rules, conclude
from perfscope.analyzers.facts.program_device import judge_for
from perfscope.analyzers.hardware import Device
from perfscope.analyzers.hardware.topology import Topology
from perfscope.analyzers.load import (
    Loaded,
    Skipped,
    folder_places,
    gathered,
    joined,
    load_path,
    note_missing,
    reader_of,
    resolve,
)
from perfscope.analyzers.rules import RULES
from perfscope.analyzers.scale.digest import Digest, digest, places_of, shortened
from perfscope.analyzers.scale.pool import Lost, cores, work_through
from perfscope.analyzers.scale.remote import is_remote, remote_files
from perfscope.analyzers.trace import Trace
from perfscope.profiler.errors import AskedWronglyError, DataError

SHARE = 500_000
"""Bytes of files a process must have to be worth starting: packed, that is a tenth of a second of reading."""

Mapper = Callable[[Callable[[str], Digest], Sequence[str]], Iterator[tuple[int, Digest | Lost]]]
"""Does the work of all places somewhere, and gives each place's as it is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The analysis of paths and what lay there. ``loaded.traces`` of a set hold only what comparing reads."""

    loaded: Loaded
    analysis: Analysis


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    """What a path of the command line leads to. ``folder``: its places are files below it."""

    path: str
    places: tuple[str, ...]
    folder: bool

    @property
    def remote(self) -> bool:
        """It lies elsewhere: only digests of it come here."""
        return is_remote(self.path)


def judge_paths(
    paths: Sequence[str | Path],
    rules: Sequence[str] | None = None,
    *,
    device: Device | None = None,
    jobs: int | None = None,
    mapper: Mapper | None = None,
    topology: Topology | None = None,
) -> Judged:
    """Judge what lies at ``paths`` as one job; ``rules``: ids, all for ``None``; ``device``: as ``judge_for``.

    Of several files each is read and judged by itself, at most ``jobs`` at once (cores, if left out) in as many
    processes, or by ``mapper``; only their digests are held together. ``DataError`` as ``load_path``.
    """
    chosen = chosen_rules(rules)
    named = _named(paths)
    remote = any(map(is_remote, paths))
    if named is None or (not remote and sum(len(one.places) for one in named) < 2):
        return _judge_whole(paths, rules, device, topology)
    foreign = [rule.id for rule in chosen if rule.compare is not None and rule.id not in RULES]
    if foreign and (mapper is not None or remote):
        raise AskedWronglyError(
            f"rule {foreign[0]} compares whole traces, of which only digests come from elsewhere: name other rules "
            "(--rule)"
        )
    if foreign:
        return _judge_whole(paths, rules, device, topology)
    places = [place for one in named for place in one.places]
    if mapper is not None:  # workers of a cluster are in other directories
        places = [place if is_remote(place) else str(Path(place).absolute()) for place in places]
    ids = tuple(rule.id for rule in chosen)
    through = mapper or partial(work_through, jobs=jobs or _processes(places))
    digests = _digests(through(partial(digest, rules=ids, device=device), places), places)
    loaded, by_trace = _put_together(named, digests)
    if any(id(trace) not in by_trace for trace in loaded.traces):  # programs alone are one trace together
        if not remote:
            return _judge_whole(paths, rules, device, topology)
        return _judge_loaded(loaded, rules, device, topology)
    for trace in loaded.traces:
        trace.topology = topology
    analysis = conclude([by_trace[id(trace)] for trace in loaded.traces], chosen)
    return Judged(loaded=loaded, analysis=replace(analysis, run=loaded.run))


def _processes(places: Sequence[str]) -> int:
    """Processes that have enough to read to be worth starting."""
    if any(map(is_remote, places)):
        return min(cores(), len(places))
    size = sum(place.stat().st_size for one in places if (place := Path(one)).is_file())
    return max(1, min(cores(), size // SHARE))


def _judge_whole(
    paths: Sequence[str | Path], rules: Sequence[str] | None, device: Device | None, topology: Topology | None
) -> Judged:
    return _judge_loaded(load_paths(paths), rules, device, topology)


def _judge_loaded(
    loaded: Loaded, rules: Sequence[str] | None, device: Device | None, topology: Topology | None
) -> Judged:
    for trace in loaded.traces:
        trace.topology = topology
    if device is not None:
        for trace in loaded.traces:
            judge_for(trace, device)
    return Judged(loaded=loaded, analysis=replace(analyze(loaded.traces, rules), run=loaded.run))


def load_paths(paths: Sequence[str | Path]) -> Loaded:
    """What lies at all paths, each trace once, with all tables. Of several runs no manifest is *the* run's."""
    return _as_one([load_path(path, alone=False) for path in paths])


def _as_one(parts: Sequence[Loaded]) -> Loaded:
    traces: dict[tuple[Path, int | None], Trace] = {}
    for part in parts:
        for trace in part.traces:
            traces.setdefault((Path(trace.source.path).absolute(), trace.source.rank), trace)
    note_missing(tuple(traces.values()))
    return Loaded(
        traces=joined(tuple(traces.values()), ", ".join(trace.source.path for trace in traces.values())),
        skipped=tuple(one for part in parts for one in part.skipped),
        run=parts[0].run if len(parts) == 1 else None,
    )


def _named(paths: Sequence[str | Path]) -> tuple[_Named, ...] | None:
    """Where the paths lead; None where one of them is not a folder of traces and no reader knows it, or it is a run."""
    found = []
    for path in paths:
        if is_remote(path):
            files, folder = remote_files(str(path))
            found.append(_Named(path=str(path), places=files, folder=folder))
            continue
        place = resolve(path)
        try:
            known = reader_of(place) is not None
        except OSError:
            known = False
        if known and place.is_file():
            found.append(_Named(path=str(place), places=(str(place),), folder=False))
        elif not known and place.is_dir():
            found.append(_Named(path=str(place), places=tuple(map(str, folder_places(place))), folder=True))
        elif any(map(is_remote, paths)):
            raise AskedWronglyError(f"{path}: cannot be analyzed together with files that lie elsewhere")
        else:
            return None
    return tuple(found)


def _digests(done: Iterator[tuple[int, Digest | Lost]], places: Sequence[str]) -> list[Digest]:
    """By place; the evidence that only a single trace would show goes as soon as there are two."""
    held: dict[int, Digest] = {}
    traces = 0
    for place, one in done:
        if isinstance(one, Lost):
            reason = f"what read it {one.why} (out of memory?)"
            one = Digest(skipped=Skipped(path=places[place], reason=reason, broken=True))
        held[place] = shortened(one) if traces and one.examined else one
        traces += len(one.examined)
    return [held[place] for place in range(len(places))]


def _put_together(named: Sequence[_Named], digests: Sequence[Digest]) -> tuple[Loaded, dict[int, Examined]]:
    """The set as loading it whole would put it together; by id of a trace what it says."""
    parts = []
    at = 0
    for one in named:
        mine = digests[at : at + len(one.places)]
        at += len(one.places)
        if one.folder:
            places = () if one.remote else tuple(map(Path, one.places))
            parts.append(gathered(one.path, places, places_of(mine)))
            continue
        lost = mine[0].skipped
        if lost is not None:
            raise DataError(f"{lost.path}: {lost.reason}")
        if not mine[0].examined:
            raise DataError(f"{one.path}: no trace in it")
        parts.append(Loaded(traces=tuple(told.trace for told in mine[0].examined)))
    return _as_one(parts), {id(told.trace): told for one in digests for told in one.examined}
