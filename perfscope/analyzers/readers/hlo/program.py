"""Files that hold only compiled programs, as a trace without rows; several files are one trace."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from perfscope.analyzers.hlo import HloModule, Thunks, hlo_costs, read_thunks, refusals
from perfscope.analyzers.readers.file_bytes import open_bytes
from perfscope.model.documents.program_files import compile_hint
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace, TraceBuilder

FUSION_DUMP_SUFFIX = ".priority_fusion_dump.txt"

MAX_DUMP_BYTES = 256 << 20
"""Maximum bytes; the dump of a model with 700 kernels takes 1 MB."""

THUNK_SEQUENCE_SUFFIX = ".thunk_sequence.txt"

MAX_THUNK_BYTES = 256 << 20
"""Maximum bytes; a model with 700 kernels takes 80 kB."""

MOST_NAMED = 3
"""Maximum number of programs that a note names."""

_ENDS = re.compile(r"(\.hlo)?\.(txt|pb)(\.(gz|xz))?$")

_BEFORE = "before_optimizations"
"""End of a program's name in XLA's dumps before optimization."""

_ARCHITECTURE = re.compile(r"\.(?:(gfx\d\w*?)|sm_(\d+)\.(\d+))_(?:gpu_)?after_opt")
"""``module_0012.jit_step.sm_9.0_gpu_after_optimizations.txt``."""


# XLA's dump of fusion decisions next to a program.
#
# ``--xla_dump_hlo_pass_re=priority-fusion`` writes ``module_0012.jit_step.priority_fusion_dump.txt`` next to
# ``module_0012.jit_step.sm_9.0_gpu_after_optimizations.txt``.


def refusals_of(path: Path) -> tuple[dict[str, str], str | None]:
    """Return kernel -> XLA's reason, and a note if a dump exists but cannot be read."""
    dump = dump_of(path, FUSION_DUMP_SUFFIX)
    if dump is None:
        return {}, None
    try:
        with open_bytes(dump, MAX_DUMP_BYTES) as data:
            raw = io.BytesIO(data) if isinstance(data, bytes) else data
            return refusals(line.decode("utf-8", "replace") for line in iter(raw.readline, b"")), None
    except DataError as error:
        return {}, f"XLA's reasons are left out: {error}"


def dump_of(path: Path, ending: str) -> Path | None:
    """Return the dump with an ending whose name shares the longest prefix with the program's."""
    parts = path.name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        for suffix in (ending, f"{ending}.gz", f"{ending}.xz"):
            result = path.with_name(".".join(parts[:count]) + suffix)
            if result != path and result.is_file():
                return result
    return None


# The launches of a GPU program, if XLA dumped them next to it.
#
# ``--xla_dump_to`` writes ``module_0012.jit_step.thunk_sequence.txt`` next to
# ``module_0012.jit_step.sm_9.0_gpu_after_optimizations.txt``.


def thunks_of(path: Path) -> tuple[Thunks | None, str | None]:
    """Return the launches, and a note if the file exists but is unreadable or empty."""
    dump = dump_of(path, THUNK_SEQUENCE_SUFFIX)
    if dump is None:
        return None, None
    try:
        with open_bytes(dump, MAX_THUNK_BYTES) as data:
            raw = io.BytesIO(data) if isinstance(data, bytes) else data
            thunks = read_thunks(line.decode("utf-8", "replace") for line in iter(raw.readline, b""))
    except DataError as error:
        return None, f"the launches are taken from the schedule: {error}"
    if not thunks.thunks:
        return None, f"the launches are taken from the schedule: {dump}: holds no thunk"
    return thunks, None


def program_trace(path: str, format_name: str, modules: Sequence[HloModule]) -> Trace:
    """Return the trace of modules without a recording; its source has a note that nothing was measured."""
    refused, problem = refusals_of(Path(path))
    thunks, trouble = thunks_of(Path(path))
    if len(modules) == 1 and (refused or thunks):
        modules = [replace(modules[0], fusion_refusals=refused, thunks=thunks)]
    return _trace(path, format_name, modules, [note for note in (problem, trouble) if note is not None])


def join_programs(traces: Sequence[Trace], path: str) -> Trace:
    """Return several programs as one trace; they are not ranks, and each is judged by itself.

    ``path``: their folder, or the files. A program that occurs twice (XLA dumps text and proto) is kept once. A program
    from before optimization is left out if the optimized one is there.
    """
    given = [module for trace in traces for module in trace.hlo]
    kept = _once(given)
    notes = [note for trace in traces for note in trace.source.notes if note not in _notes(trace.hlo)]
    unoptimized = _superseded(kept)
    kept = [module for module in kept if id(module) not in unoptimized]
    if unoptimized:
        several = "s" if len(unoptimized) > 1 else ""
        notes.append(f"left out: {len(unoptimized):,} unoptimized program{several}, as the optimized form is there")
    formats = sorted({name for trace in traces for name in trace.source.format.split(", ")})
    joined = _trace(path, ", ".join(formats), kept, list(dict.fromkeys(notes)))
    targets = {None if trace.target is None else trace.target.asked: trace for trace in traces}
    # None of several targets represents all programs: a device is assumed, and reported as assumed.
    if len(targets) == 1:
        return replace(joined, target=traces[0].target, judged_device=traces[0].judged_device)
    return joined


def _architecture(source: str) -> str | None:
    found = _ARCHITECTURE.search(source)
    return None if found is None else found[1] or f"sm_{found[2]}{found[3]}"


def _trace(path: str, format_name: str, modules: Sequence[HloModule], notes: Sequence[str]) -> Trace:
    modules = [
        replace(module, architecture=module.architecture or _architecture(module.source or path)) for module in modules
    ]
    builder = TraceBuilder(path, format_name)
    builder.events = sum(
        len(computation.instructions) for module in modules for computation in module.computations.values()
    )
    builder.programs = len(modules)
    builder.note(*_notes(modules), *notes)
    builder.record("hlo")
    trace = builder.build(hlo=tuple(modules))
    trace.fact(hlo_costs)  # This refuses a program that would never end; the rules reuse the costs.
    return trace


def _notes(modules: Sequence[HloModule]) -> tuple[str, ...]:
    single = len(modules) == 1
    what = "this is a compiled program, not a recording of its run" if single else (
        f"these are {len(modules):,} compiled programs, not recordings of a run"
    )  # fmt: skip
    notes = [f"{what}: every number is modelled or structural"]
    unoptimized = [module for module in modules if not module.is_scheduled and module.platform is None]
    if unoptimized:
        early = [module.name for module in unoptimized]
        named = ", ".join(early[:MOST_NAMED]) + (f" and {len(early) - MOST_NAMED:,} more" if early[MOST_NAMED:] else "")
        many = len(early) > 1
        notes.append(
            f"{named} {'are programs' if many else 'is the program'} before XLA optimized {'them' if many else 'it'}: "
            f"what XLA fuses is not fused in {'them' if many else 'it'} yet, and rules judge what the compiler made; "
            + compile_hint(unoptimized[0].source)
        )
    return tuple(notes)


def _once(modules: Sequence[HloModule]) -> list[HloModule]:
    """Return each program of a folder once, at its first place, as the copy with buffers (only protos have them)."""
    kept: dict[tuple[object, ...], HloModule] = {}
    for module in modules:
        key = (Path(module.source).parent, module.name, module.is_scheduled, module.content())
        before = kept.get(key)
        if before is None or (before.buffer_assignment is None and module.buffer_assignment is not None):
            kept[key] = module
    return list(kept.values())


def _superseded(modules: Sequence[HloModule]) -> set[int]:
    """Return programs from before optimization whose scheduled program has the same number and name."""
    compiled = [_stem(module) for module in modules if module.is_scheduled]
    return {id(module) for module in modules if any(_is_later(module, stem) for stem in compiled)}


def _is_later(module: HloModule, compiled: str) -> bool:
    stem = _stem(module)
    return not module.is_scheduled and stem.endswith(f".{_BEFORE}") and compiled.startswith(stem.removesuffix(_BEFORE))


def _stem(module: HloModule) -> str:
    """Return the file's path without the endings of its format."""
    return _ENDS.sub("", module.source)
