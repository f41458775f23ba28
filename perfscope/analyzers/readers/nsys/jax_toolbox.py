"""nsys-jax: the archive of NVIDIA's JAX-Toolbox, zipped or unpacked, with a recording of Nsight Systems.

```
nvtx_gpu_proj_trace/trace.parquet          NVTX ranges with the time of the device work launched in them
dump/module_0016.jit_train_step.sm_9.0_gpu_after_optimizations.hlo.pb.xz    the compiled programs
dump/module_0016.jit_train_step.gpu_target_config.pbtxt.xz                  the device they were compiled for
thread-metadata.parquet                    names of the threads, in recordings of newer versions
```

XLA opens a range for each launched instruction, inside the range of the program. nsys projects each range on the
devices: from the first begin to the last end of the work launched in it. With one kernel that is the
kernel's time; with several, it includes the time between them.

XLA launches the work of each device from a separate thread, whose name has the device of the job and the process. A
process with one device launches from the caller's thread. Without thread names, devices are numbered by thread ids.
"""

from __future__ import annotations

import re
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.hlo import HloModule
from perfscope.analyzers.readers.columns import Columns
from perfscope.analyzers.readers.file_bytes import open_bytes
from perfscope.analyzers.readers.hlo import proto
from perfscope.analyzers.readers.hlo.program import program_trace
from perfscope.analyzers.readers.xspace.programs import started
from perfscope.model.errors import DataError
from perfscope.model.trace import MISSING, Trace, TraceBuilder
from perfscope.model.trace.columns import Array

if TYPE_CHECKING:
    import pandas as pd

FORMAT = "nsys_jax"

TRACE = Path("nvtx_gpu_proj_trace", "trace.parquet")
DUMP = "dump"
THREADS = Path("thread-metadata.parquet")

MOST_ROWS = 50_000_000
"""Maximum number of rows of the projection; a parquet file of a few MB may declare any number."""

MAX_UNPACKED = 4 << 30
"""Maximum bytes that are read of an archive: a projection of some hundred million ranges and the programs."""

_ZIP = b"PK\x03\x04"
_PIECE = 1 << 20
_PROGRAMS = "*gpu_after_optimizations.hlo.pb*"
_TARGETS = "*.gpu_target_config.pbtxt*"
_TARGET_BYTES = 1 << 20
_TARGET = {
    "name": re.compile(rb'^device_description_str: "([\x20-\x7e]{1,100})"$', re.MULTILINE),
    "cores": re.compile(rb"^\s*core_count: (\d{1,6})$", re.MULTILINE),
    "memory_bytes": re.compile(rb"^\s*device_memory_size: (\d{1,15})$", re.MULTILINE),
}
_NUMBERED = re.compile(r"module_(\d+)\.")
_INSTRUCTION = re.compile(r"TSL:Thunk:#(?:.*,)?hlo_op=([^,#]+)#", re.DOTALL)
_MODULE = re.compile(r"TSL:XlaModule:#(?:.*,)?hlo_module=([^,#]+),program_id=(\d{1,18})#", re.DOTALL)
_COLLECTIVE = re.compile(r"(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast)")
_COLUMNS = ["Name", "Projected Start", "Projected Duration", "TID", "NumGPUOps", "RangeId", "ParentId"]
_MOST_NESTED = 64
_LAUNCHER = r"^XlaLauncher:#global=(\d{1,9}),local=(\d{1,9}),process=(\d{1,9}),"

_NO_INSTRUCTION = "range without an instruction (a program as a whole, NCCL, others)"


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the path is the folder, or a zip with it."""
    if head.startswith(_ZIP):
        return _holds_trace(path)
    return path.is_dir() and (path / TRACE).is_file()


def read(path: Path) -> Trace:
    """Return the recording and its programs; without pyarrow only the programs, with a note.

    ``DataError`` if corrupt.
    """
    if path.is_dir():
        return _read_folder(path)
    with tempfile.TemporaryDirectory(prefix="perfscope-") as scratch:
        folder = Path(scratch)
        _unpack(path, folder)
        try:
            trace = _read_folder(folder)
        except DataError as error:
            raise DataError(str(error).replace(str(folder), str(path))) from None
    modules = tuple(replace(module, source=module.source.replace(str(folder), str(path))) for module in trace.hlo)
    return replace(trace, source=replace(trace.source, path=str(path)), hlo=modules)


def _holds_trace(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return TRACE.as_posix() in archive.namelist()
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return False


def _unpack(path: Path, folder: Path) -> None:
    """Extract the members that are read into ``folder``, by their known names, up to `MAX_UNPACKED` bytes."""
    left = MAX_UNPACKED
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                name = PurePosixPath(member.filename)
                of_dump = name.parent == PurePosixPath(DUMP) and (name.match(_PROGRAMS) or name.match(_TARGETS))
                if name not in (PurePosixPath(TRACE), PurePosixPath(THREADS)) and not of_dump:
                    continue
                target = folder / (Path(DUMP, name.name) if of_dump else Path(name))
                target.parent.mkdir(exist_ok=True)
                with archive.open(member) as stream, target.open("wb") as written:
                    while piece := stream.read(_PIECE):
                        left -= len(piece)
                        if left < 0:
                            raise DataError(f"{path}: unpacks to more than {MAX_UNPACKED >> 30} GiB: refused")
                        written.write(piece)
    except (OSError, EOFError, ValueError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path}: the archive is cut off or corrupt: {error}") from error


def _read_folder(path: Path) -> Trace:
    modules, problems = _modules(path)
    try:
        ranges = _ranges(path / TRACE)
    except ImportError:
        if not modules:
            raise DataError(f"{path}: needs pyarrow to read {TRACE} (pip install pyarrow)") from None
        note = f"the times in {TRACE} were not read: that needs pyarrow (pip install pyarrow)"
        return program_trace(str(path), FORMAT, modules).noted(note)
    return _trace(path, ranges, modules, problems)


def _modules(path: Path) -> tuple[list[HloModule], list[str]]:
    """Return the compiled programs by XLA's number; unreadable ones are reported."""
    modules, problems = [], []
    for file in sorted((path / DUMP).glob(_PROGRAMS)):
        try:
            read_modules = proto.read(file).hlo
        except DataError as error:
            problems.append(f"the program {file.name} was not read: {str(error).removeprefix(f'{file}: ')}")
            continue
        numbered = _NUMBERED.match(file.name)
        modules += [replace(module, program_id=int(numbered[1]) if numbered else None) for module in read_modules]
    return modules, problems


def _ranges(file: Path) -> pd.DataFrame:
    """Return ranges that launched device work, with ``instruction``, ``module``, ``program``, ``root``."""
    import pandas as pd

    try:
        ranges = pd.read_parquet(file, columns=_COLUMNS, engine="pyarrow")
    except ImportError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:  # Errors of pyarrow derive from these.
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{file}: cannot be read as an nsys-jax projection: {reason}") from error
    if len(ranges) > MOST_ROWS:
        raise DataError(f"{file}: {len(ranges):,} ranges, more than any recording has")
    for name in _COLUMNS[1:]:
        ranges[name] = pd.to_numeric(ranges[name], errors="coerce")
    return ranges


def _trace(path: Path, ranges: pd.DataFrame, modules: list[HloModule], problems: list[str]) -> Trace:
    pool = TraceBuilder(str(path), FORMAT)
    names = ranges["Name"].fillna("").astype(str).tolist()
    instructions = [match[1] if (match := _INSTRUCTION.fullmatch(name)) else "" for name in names]
    chosen = np.flatnonzero(np.array([bool(instruction) for instruction in instructions], bool))
    times = {name: ranges[name].to_numpy(np.float64) for name in _COLUMNS[1:]}
    start, took = times["Projected Start"][chosen], times["Projected Duration"][chosen]
    sound = np.isfinite(start) & np.isfinite(took) & (took >= 0) & (np.abs(start) < 2**53) & (took < 2**53)
    chosen = chosen[sound]
    if not len(chosen):
        raise DataError(f"{path}: no instruction of a compiled program in {TRACE}")
    parents = _parents(times)
    roots = [_root(row, parents, names) for row in chosen.tolist()]
    matches = [_MODULE.fullmatch(names[root]) if root >= 0 else None for root in roots]
    starts = _started(modules)
    for row, one in zip(chosen.tolist(), matches, strict=True):
        if one is not None:
            instructions[row] = starts.get((int(one[2]), instructions[row]), instructions[row])
    threads = times["TID"][chosen]
    launchers = _launchers(path)
    workers = launchers.devices(threads) if launchers else _workers(threads, matches)
    ops: Columns = {
        "start_ns": times["Projected Start"][chosen].astype(np.int64),
        "end_ns": (times["Projected Start"][chosen] + times["Projected Duration"][chosen]).astype(np.int64),
        "name": np.array([pool.code(instructions[row]) for row in chosen.tolist()], np.int32),
        "module": np.array([pool.code(match[1]) if match else MISSING for match in matches], np.int32),
        "program_id": np.array([int(match[2]) if match else MISSING for match in matches], np.int64),
        "run_id": _runs(roots, threads, matches, times["Projected Start"]),
        "ordinal": np.array([workers.get(thread, 0) for thread in threads.tolist()], np.int64),
        "encloses": np.isin(chosen, parents[chosen]),
    }
    numbered = f"devices are numbered by the {len(workers)} threads that launched their work"
    if launchers:
        ops["place"] = np.array([launchers.place[ordinal] for ordinal in ops["ordinal"].tolist()], np.int64)
        pool.rank, pool.rank_source = launchers.process, "thread metadata"
        numbered = "devices have the numbers in the names of XLA's launcher threads, and executions their order here"
    several = _tables(ops, times["NumGPUOps"][chosen], _target(path), pool)
    pool.events, pool.unplaced[_NO_INSTRUCTION] = len(names), len(names) - len(chosen)
    pool.note(
        f"no single kernels in it: each of {len(pool.rows['kernels']):,} kernels shown is one instruction's work on a "
        f"device ({several:,} of them launched several kernels; the time between those is in it)",
        numbered,
        *problems,
    )
    pool.record("device_work", *(("hlo",) if modules else ()))
    return pool.build(hlo=tuple(modules))


def _started(modules: list[HloModule]) -> dict[tuple[int, str], str]:
    """Return (program, operation that XLA made asynchronous) -> the start instruction that replaces it."""
    return {
        (module.program_id, inside): start
        for module in modules
        if module.program_id is not None
        for inside, start in started(module).items()
    }


def _parents(times: dict[str, Array]) -> Array:
    """Return the row of each range's parent, or ``MISSING``."""
    held = {number: row for row, number in enumerate(times["RangeId"].tolist()) if number == number}
    return np.array([held.get(number, MISSING) for number in times["ParentId"].tolist()], np.int64)


def _root(row: int, parents: Array, names: list[str]) -> int:
    """Return the row of the program's range around a range, or ``MISSING``."""
    for _ in range(_MOST_NESTED):
        row = int(parents[row])
        if row == MISSING or names[row].startswith("TSL:XlaModule:"):
            return row
    return MISSING


class _Launchers(Struct, frozen=True):
    """Facts in the names of XLA's launcher threads. ``place``: local number of a device -> its number in the job."""

    process: int | None
    device_at: dict[int, int]
    """Thread -> local number of its device."""
    place: dict[int, int]

    def devices(self, threads: Array) -> dict[float, int]:
        """Return thread -> local number of its device; work of other threads is assigned to the first device."""
        first = min(self.place)
        return {thread: self.device_at.get(int(thread), first) for thread in np.unique(threads[threads == threads])}


def _launchers(path: Path) -> _Launchers | None:
    """Return the launchers; ``None`` without thread names, or without XLA's. Errors here do not lose the recording."""
    import pandas as pd

    if not (path / THREADS).is_file():
        return None
    try:
        names = pd.read_parquet(path / THREADS, engine="pyarrow").reset_index()
        numbers = names["Name"].astype(str).str.extract(_LAUNCHER).dropna().astype(np.int64)
        threads = names["TID"].loc[numbers.index].astype(np.int64).tolist()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # Errors of pyarrow derive from these.
        return None
    if numbers.empty:
        return None
    processes = numbers[2].unique().tolist()
    return _Launchers(
        process=processes[0] if len(processes) == 1 else None,
        device_at=dict(zip(threads, numbers[1].tolist(), strict=True)),
        place=dict(zip(numbers[1].tolist(), numbers[0].tolist(), strict=True)),
    )


def _workers(threads: Array, matches: list[re.Match[str] | None]) -> dict[float, int]:
    """Return thread -> device. The caller's thread launches programs for one device: that is the first device."""
    ran: dict[float, set[str]] = {}
    for thread, match in zip(threads.tolist(), matches, strict=True):
        ran.setdefault(thread, set()).add(match[2] if match else "")
    shared = {
        thread
        for thread, programs in ran.items()
        if any(programs & others for other, others in ran.items() if other != thread)
    }
    return {thread: index for index, thread in enumerate(sorted(shared or ran))}


def _runs(roots: list[int], threads: Array, matches: list[re.Match[str] | None], start: Array) -> Array:
    """Return the index of the program's execution on its thread, from 0, equal on all devices of one execution."""
    by_program: dict[tuple[str, float], set[int]] = {}
    keys = [
        None if match is None else (match[2], thread) for match, thread in zip(matches, threads.tolist(), strict=True)
    ]
    for key, root in zip(keys, roots, strict=True):
        if key is not None:
            by_program.setdefault(key, set()).add(root)
    number = {
        root: index
        for members in by_program.values()
        for index, root in enumerate(sorted(members, key=lambda root: float(start[root])))
    }
    return np.array([number.get(root, MISSING) for root in roots], np.int64)


def _target(path: Path) -> dict[str, bytes]:
    """Return the compilation target by the keys of ``_TARGET``; empty if the programs differ."""
    result = set()
    for file in sorted((path / DUMP).glob(_TARGETS)):
        try:
            with open_bytes(file, _TARGET_BYTES) as data:
                text = bytes(data)
        except DataError:
            return {}  # A bad name does not lose the recording.
        result.add(
            tuple((key, match[1]) for key, pattern in _TARGET.items() if (match := pattern.search(text)) is not None)
        )
    return dict(result.pop()) if len(result) == 1 else {}


def _tables(ops: Columns, launched: Array, target: dict[str, bytes], pool: TraceBuilder) -> int:
    """Make the tables by device; return how many kernels represent several."""
    leaves = np.flatnonzero(~ops["encloses"])
    leaves = leaves[np.lexsort((ops["start_ns"][leaves], ops["ordinal"][leaves]))]
    ordinals, device = np.unique(ops["ordinal"][leaves], return_inverse=True)
    texts = {code: pool.strings[code] for code in np.unique(ops["name"]).tolist()}
    collective = {code: match[1] for code, text in texts.items() if (match := _COLLECTIVE.match(text))}
    kernels: Columns = {
        "start_ns": ops["start_ns"][leaves],
        "end_ns": ops["end_ns"][leaves],
        "name": ops["name"][leaves],
        "device": device.reshape(-1).astype(np.int32),
        "communication": np.isin(ops["name"][leaves], list(collective)),
    }
    kernels["stream"] = kernels["communication"].astype(np.int64)
    ops["kernel"] = np.full(len(ops["name"]), MISSING, np.int32)
    ops["kernel"][leaves] = np.arange(len(leaves), dtype=np.int32)
    pool.table("hlo_ops", ops)
    pool.table("kernels", kernels)
    pool.table("devices", _devices(ordinals, target, pool))
    moved = np.flatnonzero(kernels["communication"])
    named = [pool.code(collective[code].replace("-", "_")) for code in kernels["name"][moved].tolist()]
    pool.table(
        "collectives",
        {
            "start_ns": kernels["start_ns"][moved],
            "end_ns": kernels["end_ns"][moved],
            "name": np.array(named, np.int32),
            "kernel": moved.astype(np.int32),
        },
    )
    return int((launched[leaves] > 1).sum())


def _devices(ordinals: Array, target: dict[str, bytes], pool: TraceBuilder) -> Columns:
    """Return devices of the kind that the programs were compiled for."""
    name = pool.code(target["name"].decode("ascii")) if "name" in target else MISSING
    return {
        "ordinal": ordinals,
        "name": np.full(len(ordinals), name, np.int32),
        "cores": np.full(len(ordinals), int(target.get("cores", MISSING)), np.int64),
        "memory_bytes": np.full(len(ordinals), int(target.get("memory_bytes", MISSING)), np.int64),
    }
