"""A file that holds compiled programs and nothing else, as a trace without rows; several of them as one."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from perfscope.analyzers.hlo.cost.module import hlo_costs
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.hlo.parse.fusion_dump import refusals
from perfscope.analyzers.hlo.parse.thunks import Thunks, read_thunks
from perfscope.analyzers.readers.file_bytes import open_bytes
from perfscope.model.documents.program_files import compile_hint
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace, TraceBuilder

# The dump of XLA's fusion decisions that lies beside a program, if one does.
#
# ``--xla_dump_hlo_pass_re=priority-fusion`` writes ``module_0012.jit_step.priority_fusion_dump.txt`` beside
# ``module_0012.jit_step.sm_9.0_gpu_after_optimizations.txt``.


FUSION_DUMP_SUFFIX = ".priority_fusion_dump.txt"

MAX_DUMP_BYTES = 256 << 20
"""The dump of a model with 700 kernels takes 1 MB."""


def refusals_beside(path: Path) -> tuple[dict[str, str], str | None]:
    """Kernel -> XLA's reason, and a note where a dump is there and cannot be read."""
    dump = dump_beside(path, FUSION_DUMP_SUFFIX)
    if dump is None:
        return {}, None
    try:
        with open_bytes(dump, MAX_DUMP_BYTES) as data:
            raw = io.BytesIO(data) if isinstance(data, bytes) else data
            return refusals(line.decode("utf-8", "replace") for line in iter(raw.readline, b"")), None
    except DataError as error:
        return {}, f"XLA's reasons are left out: {error}"


def dump_beside(path: Path, ending: str) -> Path | None:
    """The dump with an ending whose name shares the longest beginning with that of the program."""
    parts = path.name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        for suffix in (ending, f"{ending}.gz", f"{ending}.xz"):
            result = path.with_name(".".join(parts[:count]) + suffix)
            if result != path and result.is_file():
                return result
    return None


# The launches of a GPU program that lie beside it, where XLA dumped them.
#
# ``--xla_dump_to`` writes ``module_0012.jit_step.thunk_sequence.txt`` beside
# ``module_0012.jit_step.sm_9.0_gpu_after_optimizations.txt``.


THUNK_SEQUENCE_SUFFIX = ".thunk_sequence.txt"

MAX_THUNK_BYTES = 256 << 20
"""A model with 700 kernels takes 80 kB."""


def thunks_beside(path: Path) -> tuple[Thunks | None, str | None]:
    """The launches, and a note where the file is there and cannot be read or holds none."""
    dump = dump_beside(path, THUNK_SEQUENCE_SUFFIX)
    if dump is None:
        return None, None
    try:
        with open_bytes(dump, MAX_THUNK_BYTES) as data:
            raw = io.BytesIO(data) if isinstance(data, bytes) else data
            thunks = read_thunks(line.decode("utf-8", "replace") for line in iter(raw.readline, b""))
    except DataError as error:
        return None, f"the launches are taken from the schedule: {error}"
    if not thunks.thunks:
        return None, f"the launches are taken from the schedule: {dump}: no thunk is in it"
    return thunks, None


MOST_NAMED = 3
"""Programs that a note names; of more the number says enough."""

_ENDS = re.compile(r"(\.hlo)?\.(txt|pb)(\.(gz|xz))?$")
_BEFORE = "before_optimizations"
"""How XLA's dumps end the name of a program that it has not optimized yet."""


def program_trace(path: str, format_name: str, modules: Sequence[HloModule]) -> Trace:
    """The trace of modules that were handed in alone: nothing was measured, and the source says so."""
    refused, problem = refusals_beside(Path(path))
    thunks, trouble = thunks_beside(Path(path))
    if len(modules) == 1 and (refused or thunks):
        modules = [replace(modules[0], fusion_refusals=refused, thunks=thunks)]
    return _trace(path, format_name, modules, [note for note in (problem, trouble) if note is not None])


def join_programs(traces: Sequence[Trace], path: str) -> Trace:
    """Programs that were handed in together as one trace: they are no ranks, each is judged by itself.

    ``path``: the folder they lie in, or their files. A program that lies there twice (XLA dumps each as text and as
    proto) is kept once; one from before XLA optimized it is left out if the optimized one is there.
    """
    given = [module for trace in traces for module in trace.hlo]
    kept = _once(given)
    notes = [note for trace in traces for note in trace.source.notes if note not in _notes(trace.hlo)]
    unoptimized = _superseded(kept)
    kept = [module for module in kept if id(module) not in unoptimized]
    if unoptimized:
        notes.append(f"left out, for the optimized ones are there: {len(unoptimized):,} from before XLA optimized them")
    formats = sorted({name for trace in traces for name in trace.source.format.split(", ")})
    joined = _trace(path, ", ".join(formats), kept, list(dict.fromkeys(notes)))
    targets = {None if trace.target is None else trace.target.asked: trace for trace in traces}
    if len(targets) == 1:  # of several targets none stands for all: a device is assumed, and said to be
        return replace(joined, target=traces[0].target, judged_device=traces[0].judged_device)
    return joined


_ARCHITECTURE = re.compile(r"\.(?:(gfx\d\w*?)|sm_(\d+)\.(\d+))_(?:gpu_)?after_opt")
"""``module_0012.jit_step.sm_9.0_gpu_after_optimizations.txt``"""


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
    trace.fact(hlo_costs)  # refuses a program that would never end; the rules take it from here
    return trace


def _notes(modules: Sequence[HloModule]) -> tuple[str, ...]:
    single = len(modules) == 1
    what = "this is a compiled program, not a recording of its run" if single else (
        f"these are {len(modules):,} compiled programs, no recording of a run"
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
    """Each program of a folder once, where it was first: the copy that knows its buffers, which only protos do."""
    kept: dict[tuple[object, ...], HloModule] = {}
    for module in modules:
        key = (Path(module.source).parent, module.name, module.is_scheduled, _content(module))
        before = kept.get(key)
        if before is None or (before.buffer_assignment is None and module.buffer_assignment is not None):
            kept[key] = module
    return list(kept.values())


def _content(module: HloModule) -> frozenset[tuple[object, ...]]:
    """What tells a program from another of its name: all that it computes, whatever spelled it."""
    return frozenset(
        (
            computation.name,
            instruction.name,
            instruction.opcode,
            instruction.shape.dtype,
            instruction.shape.dims,
            instruction.operands,
        )
        for computation, instruction in module.instructions()
    )


def _superseded(modules: Sequence[HloModule]) -> set[int]:
    """Programs of a dump from before XLA optimized them, beside the scheduled one of the same number and name."""
    compiled = [_stem(module) for module in modules if module.is_scheduled]
    return {id(module) for module in modules if any(_is_later(module, stem) for stem in compiled)}


def _is_later(module: HloModule, compiled: str) -> bool:
    stem = _stem(module)
    return not module.is_scheduled and stem.endswith(f".{_BEFORE}") and compiled.startswith(stem.removesuffix(_BEFORE))


def _stem(module: HloModule) -> str:
    """The file's path without what says how it is written."""
    return _ENDS.sub("", module.source)
