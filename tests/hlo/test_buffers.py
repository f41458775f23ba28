"""Timelines of compiled programs: peaks against XLA's own figures, owners by hand."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from perfscope.analyzers.hlo.buffers import assigned_memory, peak_bytes
from perfscope.analyzers.hlo.module import (
    Alias,
    BufferAllocation,
    BufferAssignment,
    HeapEvent,
    HloModule,
    LogicalBuffer,
    Platform,
)
from perfscope.analyzers.hlo.parse.proto import module_of_proto
from perfscope.analyzers.hlo.protos import message
from perfscope.analyzers.programs.blocks import ASSIGNED, MODELLED, program_timelines
from perfscope.analyzers.readers.load import load_one
from perfscope.model.memory import KnownBy, MemoryPhase, MemoryTimeline
from perfscope.model.trace import MISSING, Trace
from perfscope.model.trace.tables import MemoryCategory as Category
from tests.hlo_build import hlo_module, hlo_trace, recorded_trace

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
    found = assigned_memory(module(events))
    assert found is not None
    return found.peak_arena_bytes


def test_buffers_count_while_they_live() -> None:
    found = assigned_memory(module([("alloc", 1), ("alloc", 2), ("free", 1), ("alloc", 1), ("free", 2), ("free", 1)]))
    assert found is not None
    assert (found.whole_run_bytes, found.peak_arena_bytes, found.peak_bytes) == (1000, 300, 1300)
    assert [one.id for one in found.live_at_peak] == [2, 1]


def test_a_sharer_counts_nothing_but_keeps_the_memory_alive() -> None:
    assert peak([("alloc", 3), ("share_with", 1, 3), ("free", 3), ("alloc", 2)]) == 500
    assert peak([("alloc", 3), ("share_with", 1, 3), ("free", 3), ("free", 1), ("alloc", 2)]) == 300


def test_memory_that_is_freed_before_it_is_shared_counts_again() -> None:
    assert peak([("alloc", 3), ("free", 3), ("share_with", 1, 3), ("alloc", 2), ("free", 1)]) == 500


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
        found = assigned_memory(HloModule(name="m", entry="e", computations={}, buffer_assignment=assignment))
        assert found is not None
        assert (found.peak_arena_bytes, found.whole_run_bytes) == (100, 1000)


def test_no_answer_where_temporaries_cannot_be_replayed() -> None:
    assert assigned_memory(module([])) is None
    assert assigned_memory(HloModule(name="m", entry="e", computations={})) is None
    lasting = BufferAssignment(buffers={}, allocations=(BufferAllocation(index=0, size=64, maybe_live_out=True),))
    found = assigned_memory(HloModule(name="m", entry="e", computations={}, buffer_assignment=lasting))
    assert found is not None
    assert (found.peak_bytes, found.live_at_peak) == (64, ())


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
    found = assigned_memory(embedded(corpus / "aot" / f"{file}.xplane.pb.gz", name))
    assert found is not None
    assert found.peak_bytes / 2**20 == XPROF[file, name]


@pytest.mark.corpus
@pytest.mark.slow
@pytest.mark.parametrize(("file", "name"), XPROF)
def test_xprof_says_so_today(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, name: str
) -> None:
    monkeypatch.setitem(os.environ, "TF_CPP_MIN_LOG_LEVEL", "3")
    convert = pytest.importorskip("xprof.convert.raw_to_tool_data", reason="xprof is not installed")
    path = tmp_path / f"{file}.xplane.pb"  # a copy: xprof writes in addition to it
    path.write_bytes(gzip.decompress((corpus / "aot" / f"{file}.xplane.pb.gz").read_bytes()))
    convert.xspace_to_tool_names([str(path)])  # writes the modules that the viewer reads
    asked = {"use_saved_result": False, "module_name": name}
    data, _ = convert.xspace_to_tool_data([str(path)], "memory_viewer", asked)
    found = assigned_memory(embedded(corpus / "aot" / f"{file}.xplane.pb.gz", name))
    assert found is not None
    assert json.loads(data)["peakHeapMib"] == found.peak_bytes / 2**20


@pytest.mark.corpus
def test_the_peak_of_a_gpu_program_is_what_its_executable_reports(corpus: Path) -> None:
    """``compiled.memory_analysis().peak_memory_in_bytes`` of the H100 program was 9,437,220."""
    (program,) = load_one(corpus / "aot" / "attn_naive.hlo.pb.gz").hlo
    found = assigned_memory(program)
    assert found is not None
    assert found.peak_bytes == 9_437_220
    assert sum(one.size for one in found.live_at_peak) == found.peak_arena_bytes


@pytest.mark.corpus
def test_text_alone_has_no_memory(corpus: Path) -> None:
    (program,) = load_one(corpus / "aot" / "gpu_attn_naive.hlo.txt.gz").hlo
    assert assigned_memory(program) is None


STEP = """\
ENTRY %main (w: f32[1024], m: f32[1024], x: f32[1024]) -> (f32[1024], f32[1024], f32[]) {
  %w = f32[1024]{0} parameter(0), metadata={op_name="state.params['up']"}
  %m = f32[1024]{0} parameter(1), metadata={op_name="state.momentum['up']"}
  %x = f32[1024]{0} parameter(2), metadata={op_name="batch"}
  %h = f32[1024]{0} multiply(%w, %x), metadata={op_name="jit(step)/jvp(mlp)/mul" source_file="train.py" source_line=7}
  %s = f32[1024]{0} sine(%h), metadata={op_name="jit(step)/jvp(mlp)/sin"}
  %loss = f32[] constant(0)
  %d = f32[1024]{0} cosine(%h), metadata={op_name="jit(step)/transpose(jvp(mlp))/cos"}
  %g = f32[1024]{0} multiply(%d, %x), metadata={op_name="jit(step)/transpose(jvp(mlp))/mul"}
  %m2 = f32[1024]{0} add(%m, %g), metadata={op_name="jit(step)/add"}
  %w2 = f32[1024]{0} subtract(%w, %m2), metadata={op_name="jit(step)/sub"}
  ROOT %out = (f32[1024]{0}, f32[1024]{0}, f32[]) tuple(%w2, %m2, %loss)
}
"""


def only_timeline(trace: Trace) -> MemoryTimeline:
    (found,) = trace.fact(program_timelines)
    return found


def owners(trace: Trace, timeline: MemoryTimeline) -> dict[str, Category]:
    names = [timeline.text(code) for code in timeline.blocks["name"].tolist()]
    return dict(zip(names, map(Category, timeline.blocks["category"].tolist()), strict=True))


def test_blocks_of_a_step_know_what_they_are_for() -> None:
    trace = hlo_trace(hlo_module(STEP))
    found = only_timeline(trace)
    assert (found.space, found.axis, found.basis, found.known_from) == ("program", "instruction", "modelled", MODELLED)
    assert "approximate" in found.notes[0]
    assert owners(trace, found) == {
        "state.params['up']": Category.PARAMETER,
        "state.momentum['up']": Category.OPTIMIZER_STATE,
        "batch": Category.INPUT,
        "h": Category.ACTIVATION,
        "s": Category.TEMPORARY,
        "d": Category.TEMPORARY,
        "g": Category.GRADIENT,
        "m2": Category.OUTPUT,
        "w2": Category.OUTPUT,
    }


def test_blocks_carry_place_scope_and_phase() -> None:
    trace = hlo_trace(hlo_module(STEP))
    found = only_timeline(trace)
    rows = {found.text(code): row for row, code in enumerate(found.blocks["name"].tolist())}
    h, g, m2, w = (rows[name] for name in ("h", "g", "m2", "state.params['up']"))
    line = found.lines[int(found.blocks["line"][h])]
    assert (line.file, line.line) == ("train.py", 7)
    assert found.text(int(found.blocks["module"][h])) == "mlp"
    assert found.text(int(found.blocks["module"][w])) == "state.params"
    phases = [MemoryPhase(int(found.blocks["phase"][row])) for row in (h, g, m2, w)]
    assert phases == [MemoryPhase.FORWARD, MemoryPhase.BACKWARD, MemoryPhase.OPTIMIZER, MemoryPhase.UNKNOWN]
    assert found.blocks["before"][w]
    assert found.blocks["after"][w]
    assert int(found.blocks["line"][w]) == MISSING
    assert int(found.blocks["known_by"][h]) == KnownBy.SCHEDULE
    # h is made by the fourth instruction and last read by the seventh
    assert (int(found.blocks["start"][h]), int(found.blocks["end"][h])) == (3, 7)


def test_the_curve_is_the_sum_of_what_lives() -> None:
    found = only_timeline(hlo_trace(hlo_module(STEP)))
    curve = found.live()
    for position, size in zip(curve.positions.tolist(), curve.bytes.tolist(), strict=True):
        if position <= found.last:
            assert int(found.blocks["bytes"][found.alive_at(position)].sum()) == size


def test_a_donated_argument_is_not_counted_twice() -> None:
    text = """\
    ENTRY %main (w: f32[1024], x: f32[1024]) -> f32[1024] {
      %w = f32[1024]{0} parameter(0)
      %x = f32[1024]{0} parameter(1)
      ROOT %w2 = f32[1024]{0} subtract(%w, %x)
    }
    """
    kept = hlo_module(text)
    donated = replace(kept, aliases=(Alias(output=(), parameter=0),))
    assert (peak_bytes(kept), peak_bytes(donated)) == (12288, 8192)
    assert only_timeline(hlo_trace(donated)).peak()[1] == 8192


def test_scratch_of_libraries_and_what_collectives_write_are_told_apart() -> None:
    trace = hlo_trace(
        hlo_module(
            """\
            ENTRY %main (a: f32[8,8]) -> f32[8,8] {
              %a = f32[8,8]{1,0} parameter(0)
              %all-gather = f32[64,8]{1,0} all-gather(%a), dimensions={0}, replica_groups=[1,8]<=[8]
              %call = (f32[8,8]{1,0}, s8[4096]{0}) custom-call(%a, %all-gather), custom_call_target="__cublas$gemm"
              %own = (f32[8,8]{1,0}, s8[4096]{0}) custom-call(%a, %all-gather), custom_call_target="my_kernel"
              %c = f32[8,8]{1,0} get-tuple-element(%call), index=0
              %o = f32[8,8]{1,0} get-tuple-element(%own), index=0
              ROOT %sum = f32[8,8]{1,0} add(%c, %o)
            }
            """
        )
    )
    found = owners(trace, only_timeline(trace))
    assert found["call{1}"] == Category.WORKSPACE
    assert found["call{0}"] == found["own{0}"] == found["own{1}"] == Category.TEMPORARY
    assert found["all-gather"] == Category.COMMUNICATION
    assert found["sum"] == Category.OUTPUT


@pytest.mark.corpus
def test_a_real_program_for_a_gpu_has_scratch_of_cublas(corpus: Path) -> None:
    trace = load_one(corpus / PROGRAMS[7])
    found = only_timeline(trace)
    scratch = found.blocks["category"] == Category.WORKSPACE
    names = [found.text(code) for code in found.blocks["name"][scratch].tolist()]
    assert names
    made = {one.name: one for _, one in trace.hlo[0].instructions()}
    targets = {made[name.partition("{")[0]].custom_call_target for name in names}
    assert all((target or "").startswith("__cublas$") for target in targets)


@pytest.mark.parametrize(("platform", "capacity"), [("gpu", 80 << 30), ("cpu", None)])
def test_the_memory_of_the_recorded_device_is_its_room(platform: Platform, capacity: int | None) -> None:
    recorded = recorded_trace(replace(hlo_module(STEP), platform=platform), ops=[("h", 0, 1)])
    assert only_timeline(recorded).capacity_bytes is None  # the recording does not say it
    devices = recorded.rows["devices"].with_columns({"memory_bytes": 80 << 30})
    recorded = replace(recorded, rows={**recorded.rows, "devices": devices})
    assert only_timeline(recorded).capacity_bytes == capacity


def test_a_program_before_optimization_has_no_timeline() -> None:
    assert hlo_trace(hlo_module(STEP, scheduled=False)).fact(program_timelines) == ()


def test_memory_that_is_freed_and_shared_at_once_is_one_block() -> None:
    events = [("alloc", 3), ("free", 3), ("share_with", 1, 3), ("alloc", 2), ("free", 1)]
    built = module(events)
    assert built.buffer_assignment is not None
    program = hlo_module(
        """\
        ENTRY %e (p: f32[1]) -> f32[1] {
          %b3 = f32[1]{0} parameter(0)
          %b1 = f32[1]{0} negate(%b3)
          ROOT %b2 = f32[1]{0} negate(%b1)
        }
        """
    )
    found = only_timeline(hlo_trace(replace(program, buffer_assignment=built.buffer_assignment)))
    arena = found.blocks["bytes"] < 1000
    assert sorted(found.blocks["bytes"][arena].tolist()) == [200, 300]
    assert found.peak()[1] == 1500


def test_allocations_that_no_event_names_are_there_all_the_time() -> None:
    allocations = (
        BufferAllocation(index=0, size=64, is_parameter=True, buffers=(1,)),
        BufferAllocation(index=1, size=8, is_constant=True),
        BufferAllocation(index=2, size=32, maybe_live_out=True),
        BufferAllocation(index=3, size=5, is_thread_local=True),
        BufferAllocation(index=4, size=100, buffers=(2,)),
    )
    buffers = {
        1: LogicalBuffer(id=1, instruction="w", size=64, allocation=0, offset=0),
        2: LogicalBuffer(id=2, instruction="h", size=100, allocation=4, offset=0),
    }
    heap = tuple(HeapEvent(kind=kind, buffer=2, instruction="h") for kind in ("alloc", "free"))
    assignment = BufferAssignment(buffers=buffers, allocations=allocations, heap_traces=(heap,))
    trace = hlo_trace(replace(hlo_module(STEP), buffer_assignment=assignment))
    found = only_timeline(trace)
    assert found.known_from == ASSIGNED
    assert found.peak() == (3, 204)
    assert found.reserved is not None
    assert found.reserved.bytes.tolist() == [204]
    assert sorted(found.blocks["bytes"].tolist()) == [8, 32, 64, 100]
    kinds = dict(zip(found.blocks["bytes"].tolist(), found.blocks["category"].tolist(), strict=True))
    assert kinds == {64: Category.PARAMETER, 8: Category.CONSTANT, 32: Category.OUTPUT, 100: Category.ACTIVATION}


@pytest.mark.corpus
@pytest.mark.parametrize(("file", "name"), XPROF)
def test_the_peak_of_the_timeline_is_that_of_xprof(corpus: Path, file: str, name: str) -> None:
    found = only_timeline(hlo_trace(embedded(corpus / "aot" / f"{file}.xplane.pb.gz", name)))
    assert found.peak()[1] / 2**20 == XPROF[file, name]


PROGRAMS = (
    "aot/attn_blocked.hlo.pb.gz", "aot/attn_naive.hlo.pb.gz", "aot/fsdp8.hlo.pb.gz", "aot/moe_einsum.hlo.pb.gz",
    "aot/moe_ragged.hlo.pb.gz", "aot/ssm_assoc.hlo.pb.gz", "aot/ssm_seq.hlo.pb.gz",
    "hlo_pb/JAX-Toolbox__module_0016.jit_train_step.sm_9.0_gpu_after_optimizations.hlo.pb.xz",
    "hlo_pb/TraceLens__jit_forward_3d_conv_15.hlo_proto.pb",
)  # fmt: skip


@pytest.mark.corpus
@pytest.mark.parametrize("file", PROGRAMS)
def test_the_peak_of_real_programs_is_that_of_the_replay(corpus: Path, file: str) -> None:
    trace = load_one(corpus / file)
    replayed = assigned_memory(trace.hlo[0])
    assert replayed is not None
    found = only_timeline(trace)
    at, peak = found.peak()
    assert peak == replayed.peak_bytes
    assert int(found.blocks["bytes"][found.alive_at(at)].sum()) == peak
    assert found.reserved is not None
    assert int(found.reserved.bytes[0]) >= peak
    assert (found.blocks["end"] > found.blocks["start"]).all()
    assert (np.diff(found.blocks["start"]) >= 0).all()


@pytest.mark.corpus
def test_text_is_modelled_and_says_so(corpus: Path) -> None:
    trace = load_one(corpus / "aot" / "gpu_ckpt_none_scan.hlo.txt.gz")
    found = only_timeline(trace)
    assert (found.known_from, found.peak()[1]) == (MODELLED, peak_bytes(trace.hlo[0]))
    at_peak = found.alive_at(found.peak()[0])
    activations = at_peak[found.blocks["category"][at_peak] == Category.ACTIVATION]
    # without a checkpoint most of what a scan of layers holds is what its backward needs
    assert int(found.blocks["bytes"][activations].sum()) > 0.6 * found.peak()[1]


@pytest.mark.corpus
def test_a_real_train_step_has_one_master_copy_and_two_moments(corpus: Path) -> None:
    trace = load_one(corpus / PROGRAMS[7])
    found = only_timeline(trace)
    held = found.blocks["before"]
    size = {
        kind: int(found.blocks["bytes"][held & (found.blocks["category"] == kind)].sum())
        for kind in (Category.PARAMETER, Category.OPTIMIZER_STATE)
    }
    # Adam: two moments of the weights' shape, and a counter
    assert size[Category.OPTIMIZER_STATE] == 2 * size[Category.PARAMETER] + 12


@pytest.mark.jax
@pytest.mark.slow
def test_a_step_compiled_today_peaks_where_xprof_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    convert = pytest.importorskip("xprof.convert.raw_to_tool_data", reason="xprof is not installed")
    from perfscope.profiler.jax import compat
    from perfscope.workloads.jax.attention import SIZES, VARIANTS, Block
    from perfscope.workloads.jax.data import batches
    from perfscope.workloads.jax.options import parse
    from perfscope.workloads.jax.training import LanguageModel, start, step_of

    monkeypatch.setitem(os.environ, "TF_CPP_MIN_LOG_LEVEL", "3")
    options = parse("", VARIANTS, SIZES, ["--size", "tiny"])
    model = LanguageModel(Block, options)
    step = step_of(model)
    step.__name__ = "peaks_today"
    arguments = start(model), next(iter(batches(options)))
    kept = [jax.jit(step, donate_argnums=given).lower(*arguments).compile() for given in (0, ())]
    path = tmp_path / "today.xplane.pb"
    path.write_bytes(compat.session(host_tracer_level=0).stop())
    assert len(kept) == 2

    convert.xspace_to_tool_names([str(path)])
    checked = []
    for plane in message("xspace.XSpace").FromString(path.read_bytes()).planes:
        for entry in plane.event_metadata:
            protos = [stat.bytes_value for stat in entry.value.stats if stat.bytes_value]
            if entry.value.name.startswith("jit_peaks_today") and protos:
                asked = {"use_saved_result": False, "module_name": entry.value.name}
                data, _ = convert.xspace_to_tool_data([str(path)], "memory_viewer", asked)
                found = only_timeline(hlo_trace(module_of_proto(protos[0], entry.value.name)))
                assert found.peak()[1] / 2**20 == json.loads(data)["peakHeapMib"]
                checked.append(found.peak()[1])
    assert len(set(checked)) == 2  # giving the state away lowers it
