"""Kernels from a graph's records: calls of the output code, joined to nodes and lines by inductor's provenance."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from perfscope.analyzers.readers.torch_log.records import MAX_ITEMS, Record, clean, decode, places_of
from perfscope.analyzers.readers.torch_log.unit import Call, Code, Section, Unit
from perfscope.model.compile_log import CodeLine, CompiledKernel, Direction, GraphNode

MAX_NODES_OF_KERNEL = 4096

Names = dict[str, tuple[str, ...]]


class _Mappings(msgspec.Struct):
    """``inductor_provenance_tracking_node_mappings``; version 2 numbers the calls: ``extern_kernels.mm:4``."""

    cpp_code_to_post: dict[str, list[str]] = msgspec.field(name="cppCodeToPost", default_factory=dict)


class _Compiled(msgspec.Struct):
    compile_time_us: float | None = None


def mappings(unit: Unit, record: Record) -> None:
    """Apply the map from kernels to nodes."""
    section = unit.section
    if section is None:
        return
    if record.name == "inductor_triton_kernel_to_post_grad_nodes":  # torch 2.7 and 2.8; the other record repeats it.
        reported = decode(record.payload(), dict[str, list[str]])
    else:
        reported = decode(record.payload(), _Mappings).cpp_code_to_post
    for kernel, nodes in reported.items():
        section.nodes_of[clean(kernel, 600)] = tuple(clean(node, 512) for node in nodes[:MAX_NODES_OF_KERNEL])


def stack_traces(unit: Unit, record: Record) -> None:
    """Apply the map from kernels to lines: the innermost of each stack, without torch's own frames."""
    section = unit.section
    if section is None:
        return
    for kernel, stacks in decode(record.payload(), dict[str, list[str]]).items():
        places = [places_of(stack)[-1:] for stack in stacks[:MAX_NODES_OF_KERNEL]]
        section.places_of[clean(kernel, 600)] = tuple(
            dict.fromkeys(code_line for code_lines in places for code_line in code_lines)
        )


def triton_info(unit: Unit, record: Record) -> None:
    """Record triton's compilation time of each kernel."""
    section = unit.section
    if section is None:
        return
    for kernel, reported in decode(record.payload(), dict[str, _Compiled]).items():
        if reported.compile_time_us is not None and 0 <= reported.compile_time_us < 1e15:
            section.compile_us[clean(kernel, 600)] = reported.compile_time_us


class _Gathered(Struct):
    calls: int
    call: Call
    key: str


def build(unit: Unit, section: Section) -> Iterator[CompiledKernel]:
    """Yield a kernel for each call that inductor numbered, else one per name, in the order of the code."""
    if section.code is None:
        return
    gathered: dict[str, _Gathered] = {}
    for call in section.code.calls:
        key = call.handle or call.name
        group = gathered.setdefault(key, _Gathered(0, call, key))
        group.calls += 1
        group.call.ops = tuple(dict.fromkeys((*group.call.ops, *call.ops)))[:MAX_ITEMS]
    graph = section.graph or unit.aot.get(unit.direction_of(section))
    known = {node.name: node for node in graph.nodes} if graph else {}
    direction = unit.direction_of(section)
    for group in gathered.values():
        yield _kernel(unit.compilation.compile_id, direction, section, section.code, group, known)


def _kernel(
    compile_id: str,
    direction: Direction,
    section: Section,
    code: Code,
    group: _Gathered,
    known: dict[str, GraphNode],
) -> CompiledKernel:
    defined = code.defined.get(group.call.name)
    nodes = section.nodes_of.get(group.key) or section.nodes_of.get(group.call.name)
    if nodes is None:
        nodes = defined.nodes if defined else ()
    computed = [known[name] for name in nodes if name in known]
    ops = tuple(dict.fromkeys(node.op for node in computed)) or (defined.ops if defined else group.call.ops)
    code_lines: tuple[CodeLine, ...] | None = section.places_of.get(group.key) or section.places_of.get(group.call.name)
    if code_lines is None:
        code_lines = tuple(dict.fromkeys(node.place for node in computed if node.place is not None))
    spent = section.compile_us.get(group.call.name)
    return CompiledKernel(
        name=defined.name if defined else group.call.name,
        backend=group.call.backend,
        compile_id=compile_id,
        direction=direction,
        calls=group.calls,
        nodes=nodes,
        ops=ops,
        places=code_lines,
        handle=group.call.handle,
        compile_ns=None if spent is None else round(spent * 1000),
    )
