"""Replay of XLA's heap traces: small ones by hand, real ones against xprof's memory viewer."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.facts.hlo_memory import hlo_memory, memory_timeline
from perfscope.analyzers.hlo.module import BufferAllocation, BufferAssignment, HeapEvent, HloModule, LogicalBuffer
from perfscope.analyzers.hlo.proto import module_of_proto
from perfscope.analyzers.load import load_one
from perfscope.analyzers.protos import message

PARAMETERS, ARENA, STACK, SCRATCH = range(4)
SIZES = {PARAMETERS: 1000, ARENA: 350, STACK: 7, SCRATCH: 50}
"""Allocations: parameters, the arena, the stack of a CPU kernel, an arena in another memory space."""


def module(events: list[tuple[Any, ...]], places: dict[int, int] | None = None) -> HloModule:
    """Buffers 1, 2, 3 of 100, 200, 300 bytes in the arena; events ``(kind, buffer)`` at instruction ``i<n>``."""
    places = places or {}
    buffers = {
        key: LogicalBuffer(id=key, instruction=f"b{key}", size=100 * key, allocation=places.get(key, ARENA), offset=0)
        for key in (1, 2, 3)
    }
    heap = tuple(
        HeapEvent(kind=kind, buffer=buffer, instruction=f"i{at}", share_with=shared[0] if shared else None)
        for at, (kind, buffer, *shared) in enumerate(events)
    )
    allocations = tuple(
        BufferAllocation(
            index=index,
            size=size,
            is_parameter=index == PARAMETERS,
            is_thread_local=index == STACK,
            memory_space=int(index == SCRATCH),
        )
        for index, size in SIZES.items()
    )
    assignment = BufferAssignment(buffers=buffers, allocations=allocations, heap_traces=(heap,) if events else ())
    return HloModule(name="m", entry="e", computations={}, buffer_assignment=assignment)


def peak(events: list[tuple[Any, ...]]) -> int:
    found = memory_timeline(module(events))
    assert found is not None
    return found.peak_arena_bytes


def test_buffers_count_while_they_live() -> None:
    found = memory_timeline(module([("alloc", 1), ("alloc", 2), ("free", 1), ("alloc", 1), ("free", 2), ("free", 1)]))
    assert found is not None
    assert found.live_bytes == (1100, 1300, 1200, 1300, 1100, 1000)
    assert found.instructions == ("i0", "i1", "i2", "i3", "i4", "i5")
    assert (found.whole_run_bytes, found.peak_arena_bytes, found.peak_bytes) == (1000, 300, 1300)
    assert (found.peak_instruction, [one.id for one in found.live_at_peak]) == ("i1", [2, 1])
    assert found.fragmentation_bytes == 350 - 300


def test_a_sharer_counts_nothing_but_keeps_the_memory_alive() -> None:
    assert peak([("alloc", 3), ("share_with", 1, 3), ("free", 3), ("alloc", 2)]) == 500
    assert peak([("alloc", 3), ("share_with", 1, 3), ("free", 3), ("free", 1), ("alloc", 2)]) == 300


def test_memory_that_is_freed_before_it_is_shared_counts_again() -> None:
    found = memory_timeline(module([("alloc", 3), ("free", 3), ("share_with", 1, 3), ("alloc", 2), ("free", 1)]))
    assert found is not None
    assert found.live_bytes == (1300, 1000, 1300, 1500, 1200)


def test_a_sharer_of_a_sharer_shares_the_first_ones_memory() -> None:
    assert (
        peak([("alloc", 3), ("share_with", 1, 3), ("share_with", 2, 1), ("free", 3), ("free", 1), ("free", 2)]) == 300
    )


def test_what_was_never_allocated_is_not_freed() -> None:
    assert peak([("free", 1), ("free", 9), ("alloc", 9), ("alloc", 2)]) == 200


def test_the_largest_trace_in_device_memory_counts() -> None:
    built = module([("alloc", 1)])
    assert built.buffer_assignment is not None
    elsewhere = module([("alloc", 3)], {3: SCRATCH}).buffer_assignment
    stack = module([("alloc", 3)], {3: STACK}).buffer_assignment
    assert elsewhere is not None
    assert stack is not None
    for other in (elsewhere, stack):
        assignment = BufferAssignment(
            buffers={**other.buffers, 1: built.buffer_assignment.buffers[1]},
            allocations=other.allocations,
            heap_traces=(*other.heap_traces, *built.buffer_assignment.heap_traces),
        )
        found = memory_timeline(HloModule(name="m", entry="e", computations={}, buffer_assignment=assignment))
        assert found is not None
        assert (found.peak_arena_bytes, found.arena_bytes, found.whole_run_bytes) == (100, 350, 1000)


def test_no_answer_where_temporaries_cannot_be_replayed() -> None:
    assert memory_timeline(module([])) is None
    assert memory_timeline(HloModule(name="m", entry="e", computations={})) is None
    lasting = BufferAssignment(buffers={}, allocations=(BufferAllocation(index=0, size=64, maybe_live_out=True),))
    found = memory_timeline(HloModule(name="m", entry="e", computations={}, buffer_assignment=lasting))
    assert found is not None
    assert (found.peak_bytes, found.peak_instruction, found.live_bytes) == (64, "", ())


XPROF = {
    ("attn_naive", "jit__lambda(52)"): 9.007850646972656,
    ("attn_naive", "jit__normal(36)"): 0.25011444091796875,
    ("md", "jit_tp_step(24)"): 1.531280517578125,
    ("md", "jit__lambda(26)"): 2.6094131469726562,
    ("md", "jit__lambda(28)"): 0.7812614440917969,
    ("md", "jit__multi_slice(22)"): 2.00006103515625,
    ("synth_attn_blocked", "jit__lambda(7)"): 9.25103759765625,
}
"""``peakHeapMib`` of the memory viewer of xprof 2.24.2, by file and module."""


def embedded(path: Path, name: str) -> HloModule:
    """The module of that name in an XSpace."""
    for plane in message("xspace.XSpace").FromString(gzip.decompress(path.read_bytes())).planes:
        for entry in plane.event_metadata:
            for stat in entry.value.stats:
                if entry.value.name == name and stat.bytes_value:
                    return module_of_proto(stat.bytes_value, name)
    raise AssertionError(f"no {name} in {path.name}")


@pytest.mark.corpus
@pytest.mark.parametrize(("file", "name"), XPROF)
def test_the_peak_is_that_of_xprof(corpus: Path, file: str, name: str) -> None:
    found = memory_timeline(embedded(corpus / "aot" / f"{file}.xplane.pb.gz", name))
    assert found is not None
    assert found.peak_bytes / 2**20 == XPROF[file, name]
    assert 0 <= found.fragmentation_bytes < 4096


@pytest.mark.corpus
@pytest.mark.slow
@pytest.mark.parametrize(("file", "name"), XPROF)
def test_xprof_says_so_today(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, name: str
) -> None:
    monkeypatch.setitem(os.environ, "TF_CPP_MIN_LOG_LEVEL", "3")
    convert = pytest.importorskip("xprof.convert.raw_to_tool_data", reason="xprof is not installed")
    path = tmp_path / f"{file}.xplane.pb"  # a copy: xprof writes beside it
    path.write_bytes(gzip.decompress((corpus / "aot" / f"{file}.xplane.pb.gz").read_bytes()))
    convert.xspace_to_tool_names([str(path)])  # writes the modules that the viewer reads
    asked = {"use_saved_result": False, "module_name": name}
    data, _ = convert.xspace_to_tool_data([str(path)], "memory_viewer", asked)
    found = memory_timeline(embedded(corpus / "aot" / f"{file}.xplane.pb.gz", name))
    assert found is not None
    assert json.loads(data)["peakHeapMib"] == found.peak_bytes / 2**20


@pytest.mark.corpus
def test_the_peak_of_a_gpu_program_is_what_its_executable_reports(corpus: Path) -> None:
    """``compiled.memory_analysis().peak_memory_in_bytes`` of the H100 program was 9,437,220."""
    (found,) = load_one(corpus / "aot" / "attn_naive.hlo.pb.gz").fact(hlo_memory)
    assert found.peak_bytes == 9_437_220
    assert found.peak_instruction in found.instructions
    assert sum(one.size for one in found.live_at_peak) == found.peak_arena_bytes
    assert max(found.live_bytes) == found.peak_bytes


@pytest.mark.corpus
def test_text_alone_has_no_memory(corpus: Path) -> None:
    assert load_one(corpus / "aot" / "gpu_attn_naive.hlo.txt.gz").fact(hlo_memory) == ()
