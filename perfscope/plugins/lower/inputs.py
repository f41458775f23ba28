"""From what the user names to programs and compile times: folders of dumps, of runs, logs, and files of HLO."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct, field

from perfscope.model.errors import DataError
from perfscope.model.trace import Trace
from perfscope.plugins.lower import compile_time
from perfscope.plugins.lower.capture import COLD, MOST_PROGRAMS, WARM, Run
from perfscope.plugins.lower.child import DURATIONS, TRACE
from perfscope.plugins.lower.compile_time import Key, Spent
from perfscope.plugins.lower.document import CacheAnswer
from perfscope.plugins.lower.program import Program

TORCH_TRACE = "torch_trace"
"""Folder of torch's log next to the run of a program that was planned for a machine that is not here."""
_PLANNED = (
    "planned for a machine that is not here: graphs, fusions and Triton source are inductor's for it; no kernel was "
    "compiled, so there is no PTX and no compile time"
)


class Read(Struct, kw_only=True):
    """Programs and times of an input."""

    framework: str = "jax"
    programs: tuple[Program, ...] = ()
    spent: dict[Run, Mapping[Key, Spent]] = field(default_factory=dict)
    answers: tuple[CacheAnswer, ...] = ()
    failed: str = ""
    """How the program that was run ended early."""
    remarks: list[str] = field(default_factory=list)


def read(path: Path) -> Read:
    """Programs and times at a path; ``DataError`` in one line if it has none."""
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    found = _file(path) if path.is_file() else _folder(path)
    if not found.programs:
        raise DataError(f"{path}: {_nothing(path)}")
    return found


def _nothing(path: Path) -> str:
    if path.is_dir() and not any(file.is_file() for file in path.rglob("*")):
        return "an empty folder: no dump of XLA and no log of torch.compile"
    return (
        "no program that a compiler made: no XLA dump (--xla_dump_to), no log of torch.compile (TORCH_TRACE=DIR); "
        "give the program itself, or a run of perfscope run --xla-dump"
    )


def _file(path: Path) -> Read:
    from perfscope.analyzers.readers import read_head
    from perfscope.model.documents.program_files import NAMES, compile_hint, program_file
    from perfscope.plugins.lower.xla.dump import hlo_reader, program_of_file

    if hlo_reader(path) is not None:
        return Read(programs=(program_of_file(path),))
    kind = program_file(path, read_head(path))
    if kind is not None:
        raise DataError(f"{path}: {NAMES[kind]}, which no compiler has lowered yet: {compile_hint(str(path))}")
    found = _torch([path], "cold")
    return found if found is not None else Read()


def _folder(path: Path) -> Read:
    from perfscope.plugins.lower.xla.dump import has_dumps, programs_in

    dumped = path / COLD if (path / COLD).is_dir() else path
    if has_dumps(dumped) or (path / "programs").is_dir():
        found = Read(programs=programs_in(dumped))
        if dumped != path and len(found.programs) >= MOST_PROGRAMS:
            found.remarks.append(f"only the first {MOST_PROGRAMS} programs have dumps; later programs are missing here")
        for run, folder in ((COLD, dumped), (WARM, path / WARM)):
            _jax_times(found, folder, run)
        return found
    if (path / TORCH_TRACE).is_dir():
        return _planned_with_log(path)
    if (path / "plans").is_dir():
        return Read(framework="torch", programs=_planned(path))
    logs = [file for file in sorted(dumped.rglob("*")) if file.is_file() and file.stat().st_size]
    found = _torch(logs, "cold") or Read()
    if not found.programs:
        from perfscope.plugins.lower.torch.debug_folder import debugged_programs

        found = Read(framework="torch", programs=debugged_programs(dumped))
    again = _torch(sorted((path / WARM).rglob("*.log")), "warm") if (path / WARM).is_dir() else None
    if again is not None:
        found.spent["warm"] = again.spent["warm"]
        found.answers += again.answers
    return found


def run_below(folder: Path) -> Path:
    """The only run in a folder."""
    return next(iter(sorted(path for path in folder.iterdir() if (path / "compile.json").is_file() and not
                            path.is_symlink())))  # fmt: skip


def _planned(run: Path) -> tuple[Program, ...]:
    from perfscope.analyzers.readers import load_path
    from perfscope.plugins.lower.torch.plan import planned_programs

    planned = [program for trace in load_path(str(run)).traces for program in planned_programs(trace)]
    return tuple(sorted(planned, key=lambda program: -program.weight))


def _planned_with_log(path: Path) -> Read:
    """The graphs and code of torch's log, with inductor's reasons from the plan."""
    from perfscope.plugins.lower.torch.plan import with_reasons

    planned = _planned(run_below(path))
    found = _torch(sorted((path / TORCH_TRACE).glob("*.log")), "cold")
    if found is None:
        return Read(framework="torch", programs=planned)
    programs = tuple(with_reasons(program, planned) for program in found.programs)
    return Read(framework="torch", programs=programs, remarks=[_PLANNED])


def _jax_times(found: Read, folder: Path, run: Run) -> None:
    """Add the times in a folder of a run, or XLA's own next to its programs."""
    tables: list[Mapping[Key, Spent]] = []
    if (folder / DURATIONS).is_file():
        told, answers = compile_time.jax_durations(folder / DURATIONS, run)
        tables.append(told)
        found.answers += answers
        tables += [compile_time.xla_parts(trace) for trace in _profiles(folder / TRACE)]
    else:
        for file in [*sorted(folder.rglob("*.metadata.textproto*")), *sorted(folder.rglob("*.passes.textproto*"))]:
            tables.append(compile_time.pass_metadata(_text(file), file.name.split(".")[1]))
    if any(tables):
        found.spent[run] = compile_time.together(tables)


def _profiles(folder: Path) -> Iterator[Trace]:
    from perfscope.analyzers.readers import load_path

    for file in sorted(folder.rglob("*.xplane.pb")):
        yield from load_path(str(file)).traces


def _text(file: Path) -> str:
    from perfscope.plugins.lower.xla.written import read_text

    return read_text(file)


def _torch(files: list[Path], run: Run) -> Read | None:
    from perfscope.plugins.lower.torch.stages import programs_of, read_logs

    logs = read_logs(files)
    if not logs:
        return None
    found = Read(framework="torch")
    tables = []
    for log in logs:
        found.programs += programs_of(log)
        spent, answers = compile_time.torch_parts(log.log, run)
        tables.append(spent)
        found.answers += answers
    found.spent[run] = compile_time.together(tables)
    return found
