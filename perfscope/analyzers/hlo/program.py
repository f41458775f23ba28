"""The parts of an XLA program that run, how often they run, and the names of its ops.

XLA stores a fusion's body, a reduction's operator and a loop's body all as computations. Only the entry and the code of
loops, branches and calls are sequences of launches, and nothing inside a fusion is: these are the control computations.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.hlo.cost.module import ModuleCost, hlo_costs
from perfscope.analyzers.hlo.module import Computation, HloModule, Instruction
from perfscope.analyzers.hlo.structure import callees_first
from perfscope.analyzers.hlo.views import MOVES_NOTHING
from perfscope.model.finding import Where
from perfscope.model.trace import Trace

CONTROL = frozenset({"while", "conditional", "call", "async-start"})
"""Opcodes that run the computations they call, one instruction after another."""

_PLUMBING = frozenset((
    "", "main", "while", "body", "cond", "closed_call", "eval_jaxpr", "checkpoint", "rematted_computation", "remat2",
    "remat",
))  # fmt: skip
"""Parts of an op's path that come from JAX's transformations."""

_WRAPPER = re.compile(r"^(jvp|transpose|vmap|pmap|custom_jvp_call|custom_vjp_call|shard_map|remat)\((.*)\)$")
_BRANCH = re.compile(r"^branch_\d+_fun$")
_PROGRAM_OF_PLANE = re.compile(r": [^/]*\(\d+\)$")
_FILE_ENDS = re.compile(r"(\.compiled)?(\.hlo|\.xplane)?(\.(txt|pb))?(\.(gz|xz))?$")

_UNSAFE = re.compile(r"[^\w.-]")
"""Characters that jax replaces in the name of a program: ``jit(step)`` is ``jit_step`` in XLA."""


class Runs(Struct, frozen=True, kw_only=True):
    """Number of runs of a control computation per run of the module."""

    times: int
    exact: bool
    """False if a loop around it has an unknown trip count and was counted once, a lower bound."""


def control_runs(module: HloModule) -> Mapping[str, Runs]:
    """Return the control computations by name, callers first, with their number of runs per run of the module.

    A loop's condition counts as often as its body; all branches of a conditional count, as if each were taken (an upper
    bound).
    """
    result = {
        name: Runs(times=0, exact=True)
        for name in reversed(callees_first(module, lambda instruction: instruction.opcode in CONTROL))
    }
    result[module.entry] = Runs(times=1, exact=True)
    for name in tuple(result):
        runs = result[name]
        for instruction in module.computations[name].instructions:
            if instruction.opcode not in CONTROL:
                continue
            loop = instruction.opcode == "while"
            times = runs.times * (instruction.trip_count or 1 if loop else 1)
            exact = runs.exact and not (loop and instruction.trip_count is None)
            for called in instruction.called:
                before = result[called]
                result[called] = Runs(times=before.times + times, exact=before.exact and exact)
    return result


def launched(module: HloModule) -> Iterator[tuple[Computation, Instruction, Runs]]:
    """Yield the launched instructions of control computations: each is a kernel, a library call or a collective."""
    for name, runs in control_runs(module).items():
        computation = module.computations[name]
        for instruction in computation.instructions:
            if instruction.opcode not in MOVES_NOTHING and instruction.opcode not in CONTROL - {"async-start"}:
                yield computation, instruction, runs


def fused(module: HloModule, instruction: Instruction) -> Iterator[Instruction]:
    """Yield the instruction itself, or the contents of a fusion, including nested fusions."""
    if instruction.opcode != "fusion":
        yield instruction
        return
    for name in instruction.called:
        body = module.computations.get(name)
        for inner in body.instructions if body is not None else ():
            yield from fused(module, inner)


def primitive(op_name: str) -> str:
    """Return the JAX primitive at the end of an op's path: ``dot_general``; ``''`` without a path."""
    return op_name.rpartition("/")[2].strip("()")


def scope(op_name: str) -> str:
    """Return the user's own part of an op's path: named scopes and modules, without JAX's transformations.

    ``jit(step)/transpose(jvp(mlp))/while/body/checkpoint/dot_general`` -> ``mlp``.
    """
    kept = []
    for part in _parts(op_name)[:-1]:
        while (wrapped := _WRAPPER.match(part)) is not None:
            part = wrapped[2]
        if part not in _PLUMBING and not part.startswith("jit(") and not _BRANCH.match(part):
            kept.append(part)
    return "/".join(kept)


def _parts(op_name: str) -> list[str]:
    """Split at the slashes outside of parentheses."""
    parts, depth, start = [], 0, 0
    for index, char in enumerate(op_name):
        depth += (char == "(") - (char == ")")
        if char == "/" and depth <= 0:
            parts.append(op_name[start:index])
            start = index + 1
    parts.append(op_name[start:])
    return parts


def where_of(instruction: Instruction) -> Where:
    """Return the user's line of an instruction, with its primitive and scope."""
    return Where(
        op=primitive(instruction.op_name) or None,
        module=scope(instruction.op_name) or None,
        file=instruction.file,
        line=instruction.line,
    )


def line_of(instruction: Instruction) -> Where:
    """Return only the user's line, for grouping; without one, the primitive and scope."""
    where = where_of(instruction)
    if where.file is None:
        return Where(op=where.op, module=where.module)
    return Where(file=where.file, line=where.line)


def call_line(trace: Trace, program: str) -> Where | None:
    """Return the user's line whose call compiled a program named ``jit_step``; ``None`` without such an event."""
    for event in trace.compile_events:
        known = event.kind == "compile" and event.function is not None and event.file is not None
        if known and _UNSAFE.sub("_", event.function or "").rstrip("_") == program:
            return Where(file=event.file, line=event.line)
    return None


def costs(trace: Trace) -> tuple[ModuleCost, ...]:
    """Return the cost of one run of every scheduled program, in the order of ``trace.hlo``."""
    return tuple(cost for cost in trace.fact(hlo_costs) if cost.module.is_scheduled)


def programs_apart(trace: Trace) -> tuple[Trace, ...]:
    """Return one trace per program if the trace consists only of several programs; else the trace itself."""
    if len(trace.hlo) < 2 or trace.recorded != {"hlo"} or trace.source.programs is None:
        return (trace,)
    return tuple(_alone(module, trace) for module in trace.hlo)


def _alone(module: HloModule, trace: Trace) -> Trace:
    source = replace(trace.source, path=module.source or trace.source.path, programs=1)
    return Trace(
        source=source, strings=(), rows={}, recorded=trace.recorded, hlo=(module,), judged_device=trace.judged_device,
        target=trace.target,
    )  # fmt: skip


def program_label(module: HloModule, trace: Trace) -> str:
    """Return the shortest name that distinguishes a program from the others of the trace; see ``program_labels``."""
    labels = trace.fact(_labels)
    return labels.get(id(module), module.name)


def _labels(trace: Trace) -> dict[int, str]:
    return {id(module): label for module, label in zip(trace.hlo, program_labels(trace.hlo), strict=True)}


def program_labels(modules: Sequence[HloModule]) -> tuple[str, ...]:
    """Return a different label for each program.

    It is the name, else the file (with as few folders as possible), else the number in the process, else a count.
    """
    labels = [module.name.partition("(")[0] or "program" for module in modules]
    files: dict[str, set[str]] = {}
    for module, label in zip(modules, labels, strict=True):
        files.setdefault(label, set()).add(_file(module))
    for index in _shared_at(labels):
        if len(files[labels[index]]) > 1 and (file := _file(modules[index])):
            labels[index] = _tail(file, files[labels[index]])
    for index in _shared_at(labels):
        if modules[index].program_id is not None:
            labels[index] = f"{labels[index]} (program {modules[index].program_id})"
    seen: Counter[str] = Counter()
    for index in _shared_at(labels):
        label = labels[index]
        seen[label] += 1
        labels[index] = f"{label} #{seen[label]}"
    return tuple(labels)


def _shared_at(labels: Sequence[str]) -> list[int]:
    counts = Counter(labels)
    return [index for index, label in enumerate(labels) if counts[label] > 1]


def _file(module: HloModule) -> str:
    """Return the file of a program, without endings that only describe the format."""
    return _FILE_ENDS.sub("", _PROGRAM_OF_PLANE.sub("", module.source))


def _tail(file: str, files: Iterable[str]) -> str:
    """Return the last parts of a path, as few as distinguish it from the other ``files``."""
    parts = PurePath(file).parts
    others = [PurePath(other).parts for other in files if other != file]
    depth = next((n for n in range(1, len(parts)) if all(other[-n:] != parts[-n:] for other in others)), len(parts))
    tail = parts[-depth:]
    if depth > 2 and all(other[-depth:][:1] + other[-1:] != (tail[0], tail[-1]) for other in others):
        return f"{tail[0]}/…/{tail[-1]}"
    return str(PurePath(*tail))
