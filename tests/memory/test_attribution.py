"""Categories of blocks: each way of knowing, on built traces and a recorded snapshot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfscope.analyzers.memory.blocks import event_timelines
from perfscope.analyzers.memory.categories import memory_timelines
from perfscope.analyzers.readers.torch_memory import reader as torch_memory_reader
from perfscope.model.memory import KnownBy, MemoryPhase, MemoryTimeline, SourceLine
from perfscope.model.trace import CopyKind, Trace
from perfscope.model.trace.tables import MemoryCategory
from tests.graphs import GraphBuilder
from tests.memory.build import MemoryBuilder, category_of

EVALUATE = "autograd::engine::evaluate_function: AddmmBackward0"


def _step(b: MemoryBuilder, at: float) -> None:
    """Forward from 0 to 20, backward from 30 to 50, optimizer from 60 to 70."""
    b.op("aten::linear", at, at + 20, sequence=1, forward_thread=0)
    b.op(EVALUATE, at + 30, at + 50, sequence=1, forward_thread=1)
    b.annotation("Optimizer.step#AdamW.step", at + 60, at + 70)


def _known_by(timeline: MemoryTimeline, address: int) -> KnownBy:
    return KnownBy(int(timeline.blocks["known_by"][timeline.blocks["address"] == address][0]))


def test_by_the_phases_a_block_lives_through():
    b = MemoryBuilder()
    _step(b, 0)
    _step(b, 100)
    b.make(1, 8, 5)  # forward, let go in the backward pass
    b.make(2, 8, 6)
    b.free(2, 7)  # within the forward pass
    b.make(3, 8, 35)
    b.free(3, 40)  # within the backward pass
    b.free(1, 45)
    b.make(4, 8, 46)  # backward, until the next step
    b.make(5, 8, 61)
    b.free(5, 62)  # within the optimizer
    b.make(6, 8, 63)  # optimizer, never freed
    b.free(4, 80)
    b.make(7, 8, 105)  # forward of a step after it: to be freed after its backward began
    b.free(7, 160)
    (timeline,) = memory_timelines(b.build())
    wanted = {
        1: MemoryCategory.ACTIVATION, 2: MemoryCategory.TEMPORARY, 3: MemoryCategory.TEMPORARY,
        4: MemoryCategory.GRADIENT, 5: MemoryCategory.TEMPORARY, 6: MemoryCategory.OPTIMIZER_STATE,
        7: MemoryCategory.ACTIVATION,
    }  # fmt: skip
    assert {address: category_of(timeline, address) for address in wanted} == wanted
    assert {_known_by(timeline, address) for address in wanted} == {KnownBy.PHASE}


def test_what_no_phase_tells_stays_unknown():
    b = MemoryBuilder()
    b.op("aten::linear", 0, 20, sequence=1, forward_thread=0)
    b.op(EVALUATE, 30, 50, sequence=1, forward_thread=1)
    b.make(1, 8, 35)  # no optimizer follows: a gradient, or something else
    b.make(2, 8, 60)
    (timeline,) = memory_timelines(b.build())
    for address in (1, 2):
        assert category_of(timeline, address) is MemoryCategory.UNKNOWN
        assert _known_by(timeline, address) is KnownBy.NOTHING


def test_recomputed_work_is_told_from_the_first_time():
    b = MemoryBuilder(recorded=frozenset({"memory", "host_ops", "autograd"}))
    b.op("aten::linear", 0, 20, sequence=1, forward_thread=0)
    b.op(EVALUATE, 30, 90, sequence=1, forward_thread=1)
    b.op("aten::linear", 35, 45, sequence=2, forward_thread=0)  # runs again inside the node
    b.op("aten::mm", 50, 60)
    b.annotation("Optimizer.step#SGD.step", 100, 110)
    b.make(1, 8, 5)
    b.free(1, 10)
    b.make(2, 8, 36)
    b.make(3, 8, 37)
    b.free(3, 40)
    b.free(2, 80)
    (timeline,) = memory_timelines(b.build())
    assert category_of(timeline, 2) is MemoryCategory.ACTIVATION
    assert category_of(timeline, 3) is MemoryCategory.TEMPORARY
    phases = dict(zip(timeline.blocks["address"].tolist(), timeline.blocks["phase"].tolist(), strict=True))
    assert phases == {1: MemoryPhase.FORWARD, 2: MemoryPhase.RECOMPUTE, 3: MemoryPhase.RECOMPUTE}


def test_recorded_categories_and_addresses_go_first():
    b = MemoryBuilder()
    b.starts_with(5000)
    _step(b, 0)
    b.make(1, 8, 5, category=int(MemoryCategory.INPUT))
    b.free(1, 40)
    b.free(2, 65, size=512)  # held before
    for address, name, size in ((2, "head.weight", 500), (3, "body.weight", 600), (3, "tied", 600)):
        b.row("tensors", name=b.code(name), module=b.code(name.split(".")[0]), on_device=True, ordinal=0,
              address=address, bytes=size, category=int(MemoryCategory.PARAMETER))  # fmt: skip
    trace = b.build()
    timeline = memory_timelines(trace)[0]
    assert (category_of(timeline, 1), _known_by(timeline, 1)) == (MemoryCategory.INPUT, KnownBy.RECORDED)
    assert (category_of(timeline, 2), _known_by(timeline, 2)) == (MemoryCategory.PARAMETER, KnownBy.ADDRESS)
    assert (category_of(timeline, 3), _known_by(timeline, 3)) == (MemoryCategory.PARAMETER, KnownBy.ADDRESS)
    row = int(np.flatnonzero(timeline.blocks["address"] == 3)[0])
    assert timeline.text(int(timeline.blocks["name"][row])) == "body.weight"
    assert timeline.text(int(timeline.blocks["module"][row])) == "body"
    assert timeline.blocks["bytes"][row] == 1024  # as the allocator rounds
    assert timeline.blocks["requested_bytes"][row] == 600
    (before,) = event_timelines(trace)
    np.testing.assert_array_equal(timeline.live().bytes, before.live().bytes)  # they were in the allocator's total


def test_tensors_that_the_allocator_does_not_count_are_added():
    b = MemoryBuilder()
    b.make(1, 8, 5, device=-1)
    b.make(9, 8, 50, device=-1)
    for address, freed in ((2, -1), (3, 20_000), (4, 1_000)):
        b.row("tensors", name=b.code(f"t{address}"), module=-1, on_device=False, ordinal=-1, address=address,
              bytes=100, category=int(MemoryCategory.GRADIENT), freed_ns=freed)  # fmt: skip
    (timeline,) = memory_timelines(b.build())
    assert timeline.blocks["address"].tolist() == [2, 3, 1, 9]  # the last one went before the recording began
    assert timeline.live().bytes.tolist() == [208, 108, 116]
    assert any("excludes 200 B of the program's tensors" in note for note in timeline.notes)


def test_by_the_op_that_asked():
    b = MemoryBuilder()
    b.python("nn.Module: Net_0", 40, 60)
    b.op("c10d::allreduce_", 0, 10)
    b.op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10, 20)
    b.op("aten::to", 20, 30)
    b.op("aten::copy_", 21, 29, external_id=5)
    b.copy("Memcpy HtoD", 25, 28, external_id=5, kind=CopyKind.HOST_TO_DEVICE)
    b.op("aten::addmm", 45, 55, sequence=1, forward_thread=0)
    b.make(1, 8, 5)
    b.make(2, 8, 15)
    b.make(3, 8, 20.5)
    b.make(4, 4096 * 8192, 46)
    b.make(5, 64, 47)
    b.free(5, 48)
    b.make(6, 8, 49)
    (timeline,) = memory_timelines(b.build())
    wanted = {
        1: MemoryCategory.COMMUNICATION, 2: MemoryCategory.INPUT, 3: MemoryCategory.INPUT,
        4: MemoryCategory.WORKSPACE, 5: MemoryCategory.WORKSPACE, 6: MemoryCategory.UNKNOWN,
    }  # fmt: skip
    assert {address: category_of(timeline, address) for address in wanted} == wanted
    assert _known_by(timeline, 1) is KnownBy.OP


def _frame(b: MemoryBuilder, file: str, name: str, parent: int = -1, line: int = 7) -> int:
    rows = b.tables.setdefault("frames", [])
    rows.append({"file": b.code(file), "line": line, "name": b.code(name), "parent": parent})
    return len(rows) - 1


def test_by_the_stack_of_a_snapshot():
    b = MemoryBuilder(recorded=frozenset({"memory", "memory_state"}))
    site = "/opt/lib/python3.12/site-packages/"
    main = _frame(b, "/home/me/train.py", "<module>")
    call = _frame(b, site + "torch/nn/modules/module.py", "_call_impl", main)
    forward = _frame(b, "/home/me/model.py", "forward", call, line=30)
    linear = _frame(b, site + "torch/nn/modules/linear.py", "forward", forward)
    scratch = _frame(b, "CublasHandlePool.cpp", "at::cuda::getNewWorkspace()", linear)
    gather = _frame(b, site + "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", "all_gather", forward)
    engine = _frame(b, "??", "torch::autograd::Engine::evaluate_function(std::shared_ptr<>&)")
    optimizer = _frame(b, site + "torch/optim/adamw.py", "_init_group", main)
    moving = _frame(b, site + "torch/nn/modules/module.py", "convert", main)
    again = _frame(b, site + "torch/utils/checkpoint.py", "recompute_fn", engine)
    for at, (address, frame) in enumerate(
        [(1, moving), (2, linear), (3, scratch), (4, gather), (5, engine), (6, optimizer), (7, again)], 1
    ):
        b.make(address, 8, at, frame=frame)
    b.free(7, 8)
    b.free(2, 9)
    (timeline,) = memory_timelines(b.build())
    wanted = {
        1: MemoryCategory.PARAMETER, 2: MemoryCategory.ACTIVATION, 3: MemoryCategory.WORKSPACE,
        4: MemoryCategory.COMMUNICATION, 5: MemoryCategory.GRADIENT, 6: MemoryCategory.OPTIMIZER_STATE,
    }  # fmt: skip
    assert {address: category_of(timeline, address) for address in wanted} == wanted
    by_stack = {address for address in wanted if _known_by(timeline, address) is KnownBy.STACK}
    assert by_stack == {1, 3, 4, 6}
    place = timeline.lines[int(timeline.blocks["line"][timeline.blocks["address"] == 2][0])]
    assert (place.file, place.line, place.function) == ("/home/me/model.py", 30, "forward")


def test_a_stack_that_is_a_circle_ends():
    b = MemoryBuilder(recorded=frozenset({"memory", "memory_state"}))
    _frame(b, "a.c", "f", 1)
    _frame(b, "b.c", "g", 0)
    b.make(1, 8, 1, frame=0)
    (timeline,) = memory_timelines(b.build())
    assert category_of(timeline, 1) is MemoryCategory.UNKNOWN
    assert timeline.blocks["line"].tolist() == [-1]


@pytest.mark.corpus
def test_a_recorded_training_step_of_adamw(corpus: Path):
    """Gradients take what the parameters take, and AdamW's two moments twice that, to the byte."""
    trace = torch_memory_reader.read(corpus / "torch_mem" / "assignment2-systems__medium512_train.pickle.gz")
    (timeline,) = memory_timelines(trace)
    blocks = timeline.blocks
    bytes_of = {
        category: int(blocks["bytes"][(blocks["category"] == category) & ~blocks["before"]].sum())
        for category in (MemoryCategory.GRADIENT, MemoryCategory.OPTIMIZER_STATE)
    }
    assert bytes_of[MemoryCategory.GRADIENT] == 1_692_733_440
    assert bytes_of[MemoryCategory.OPTIMIZER_STATE] == 2 * 1_692_733_440


SITE = "/x/site-packages/"


def _site(trace: Trace, address: int) -> tuple[str, SourceLine | None]:
    (timeline,) = memory_timelines(trace)
    row = int(np.flatnonzero(timeline.blocks["address"] == address)[0])
    line = int(timeline.blocks["line"][row])
    module = timeline.text(int(timeline.blocks["module"][row]))
    return module, None if line < 0 else timeline.lines[line]


def _recording() -> MemoryBuilder:
    b = MemoryBuilder()
    b.step(0, 0, 100)
    b.python("train.py(3): main", 0, 99)
    b.python("nn.Module: Net_0", 1, 40)
    b.python("model.py(10): forward", 2, 39)
    b.python("nn.Module: Linear_7", 3, 20)
    b.python("torch/nn/modules/linear.py(90): forward", 4, 19)
    b.op("aten::addmm", 5, 15, sequence=1, forward_thread=0)
    b.op("aten::mul", 25, 30, sequence=2, forward_thread=0)
    b.op("aten::add", 31, 35, sequence=3, forward_thread=0)
    b.op("autograd::engine::evaluate_function: AddmmBackward0", 50, 60, sequence=1, forward_thread=1, tid=2)
    b.op("aten::mm", 52, 55, tid=2)
    b.make(1, 8, 6)
    b.make(2, 8, 26)
    b.make(3, 8, 32)
    b.make(4, 8, 53, thread=b.thread(2))
    return b


def test_python_spans_give_nested_modules_and_the_users_function():
    trace = _recording().build()
    forward = SourceLine(file="model.py", line=10, function="forward")
    assert _site(trace, 1) == ("Net_0.Linear_7", forward)
    assert _site(trace, 2) == ("Net_0", forward)
    assert _site(trace, 4) == ("Net_0.Linear_7", forward)  # the gradient of what was made there


def test_the_op_graph_has_qualified_names_and_the_line_that_ran():
    g = GraphBuilder()
    x = g.input((2, 2))
    g.op("addmm", [x], module="net.head", file="model.py", line=14, function="Net.forward")
    g.op("mul", [x], module="net", file="model.py", line=15, function="Net.forward")
    b = _recording()
    b.op_graph = g.graph()
    trace = b.build()
    assert _site(trace, 1) == ("net.head", SourceLine(file="model.py", line=14, function="Net.forward"))
    assert _site(trace, 2) == ("net", SourceLine(file="model.py", line=15, function="Net.forward"))
    # the graph has no aten::add, but all that it has of Net_0's own call is in ``net``
    assert _site(trace, 3)[0] == "net"


def test_the_graph_of_a_run_is_matched_with_its_detail_recording():
    g = GraphBuilder()
    g.op("mul", [g.input((2, 2))], module="net", file="model.py", line=15, function="Net.forward")
    outer = MemoryBuilder(detail=_recording().build(), op_graph=g.graph())
    outer.op("aten::mul", 0, 1)
    assert _site(outer.build(), 2) == ("net", SourceLine(file="model.py", line=15, function="Net.forward"))


def test_a_stack_gives_the_innermost_line_of_the_users():
    b = MemoryBuilder(recorded=frozenset({"memory", "memory_state"}))
    frames = [
        ("/home/me/train.py", "main", 3, -1),
        ("C:\\env\\Lib\\site-packages\\einops\\einops.py", "einsum", 9, 0),
        (SITE + "torch/functional.py", "einsum", 12, 1),
        ("??", "at::native::einsum()", -1, 2),
        (SITE + "einops/einops.py", "rearrange", 5, -1),
    ]
    for file, name, line, parent in frames:
        b.row("frames", file=b.code(file), name=b.code(name), line=line, parent=parent)
    b.make(1, 8, 1, frame=3)
    b.make(2, 8, 2, frame=4)
    b.make(3, 8, 3)
    trace = b.build()
    assert _site(trace, 1) == ("", SourceLine(file="/home/me/train.py", line=3, function="main"))
    # nothing of the user's is on the stack: the library's own line
    assert _site(trace, 2) == ("", SourceLine(file=SITE + "einops/einops.py", line=5, function="rearrange"))
    assert _site(trace, 3) == ("", None)


def _decoded(b: MemoryBuilder, *, attends: bool) -> MemoryTimeline:
    """Three steps that join what was kept before with a new part; attention reads it, or a product does."""
    reader = "aten::scaled_dot_product_attention" if attends else "aten::mm"
    for step in range(3):
        at, length = 100 * step, 64 + step
        b.step(step, at, at + 100)
        b.python("decode.py(5): attend", at, at + 100)
        b.op("aten::cat", at + 10, at + 50, shapes=f"[[[4, 8, {length}, 32], [4, 8, 1, 32]], []]")
        b.op(reader, at + 60, at + 90)
        b.make(10 + step, 4_096 * (length + 1), at + 20)
        if step:
            b.free(9 + step, at + 95)
    b.free(9, 96, size=4_096 * 64)
    b.make(1, 4_096, 70)
    b.free(1, 80)
    (timeline,) = memory_timelines(b.build())
    return timeline


def test_what_attention_keeps_for_the_next_call_is_the_cache() -> None:
    b = MemoryBuilder()
    b.starts_with(4_096 * 64)
    timeline = _decoded(b, attends=True)
    kept = {address: category_of(timeline, address) for address in (9, 10, 11, 12, 1)}
    assert [kept[address] for address in (9, 10, 11, 12)] == [MemoryCategory.KV_CACHE] * 4
    assert kept[1] is not MemoryCategory.KV_CACHE


def test_what_is_kept_without_an_attention_is_no_cache_of_keys() -> None:
    b = MemoryBuilder()
    b.starts_with(4_096 * 64)
    timeline = _decoded(b, attends=False)
    assert MemoryCategory.KV_CACHE not in timeline.blocks["category"].tolist()
