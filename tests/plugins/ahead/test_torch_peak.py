"""The peak of a step from events written by hand: blocks, planned graphs, sums of gradients, what is where."""

from __future__ import annotations

from typing import Any

from perfscope.model.documents.torch_plan import StepMemory
from perfscope.plugins.ahead.torch.peak import (
    Block,
    Event,
    GraphBuffers,
    GraphCall,
    LedgerStep,
    rounded_size,
    step_memory,
)

KIB = 1024


def block(size: int, **changes: Any) -> Block:
    return Block(**{"bytes": size, "phase": "forward", "born": 10, "device": True, "touched": 10, **changes})


def peak(held: list[Block], events: list[Event], **changes: Any) -> StepMemory:
    parts: dict[str, Any] = {
        "joins": (), "backward_began": (20,), "graphs": (), "all_on_device": False, "first_op": 5,
    }  # fmt: skip
    return step_memory(LedgerStep(held=held, events=events, **{**parts, **changes}))


def held_by(found: StepMemory) -> dict[str, int]:
    sums: dict[str, int] = {}
    for one in found.holders:
        sums[one.category] = sums.get(one.category, 0) + one.bytes
    return sums


def test_blocks_are_rounded_as_an_allocator_hands_them_out() -> None:
    assert [rounded_size(size) for size in (0, 1, 512, 513)] == [0, 512, 512, 1024]
    found = peak([], [("born", block(1)), ("born", block(513))])
    assert (found.peak_bytes, found.requested_bytes) == (1536, 514)


def test_the_first_highest_moment_is_the_peak_and_its_holders_sum_to_it() -> None:
    weights = block(4 * KIB, category="parameter", born=1)
    kept, scratch = block(8 * KIB, place=("a.py", 3, "f"), op="aten.mm"), block(2 * KIB, born=11, died=12)
    loss = block(1 * KIB, born=21, phase="backward", op="aten.mul", place=("a.py", 9, "g"))
    events: list[Event] = [("born", kept), ("born", scratch), ("died", scratch), ("born", loss), ("died", kept)]
    found = peak([weights], events)
    assert (found.start_bytes, found.peak_bytes, found.phase) == (4 * KIB, 14 * KIB, "forward")
    assert held_by(found) == {"parameter": 4 * KIB, "activation": 8 * KIB, "temporary": 2 * KIB}
    assert sum(one.bytes for one in found.holders) + found.left_bytes == found.peak_bytes


def test_a_graph_holds_its_buffers_inside_and_frees_inputs_that_nobody_else_has() -> None:
    saved, weights = block(6 * KIB), block(4 * KIB, category="parameter", born=1)
    first, second, result = (Block(4 * KIB), Block(2 * KIB), Block(3 * KIB))
    let_go = Block(0, born=0)
    graph = GraphBuffers(
        label="0/0 backward",
        events=[
            ("born", first), ("let go", let_go), ("let go", Block(0, born=1)), ("born", second), ("died", first),
            ("born", result),
        ],
        results=(result,),
    )  # fmt: skip
    gradient = block(3 * KIB, phase="backward", category="gradient", born=21)

    def step(given_up: frozenset[int]) -> StepMemory:
        call = GraphCall(number=0, inputs=(saved, weights), given_up=given_up, outputs=(gradient,), phase="backward")
        ended: list[Event] = [("died", saved)] if given_up else []
        return peak([saved, weights], [("graph", call), *ended, ("born", gradient)], graphs=(graph,))

    freed = step(frozenset({0}))
    assert (freed.peak_bytes, freed.graph, freed.phase) == (14 * KIB, "0/0 backward", "backward")
    assert step(frozenset()).peak_bytes == 16 * KIB  # weights (4), saved (6), both buffers (6)


def test_a_buffer_that_a_graph_gives_back_is_what_it_is_outside() -> None:
    mine, theirs = Block(4 * KIB), block(4 * KIB, op="aten.mm")
    graph = GraphBuffers(events=[("born", mine), ("born", two := Block(KIB)), ("died", two)], results=(mine,))
    call = GraphCall(number=0, inputs=(), given_up=frozenset(), outputs=(theirs,), phase="forward")
    found = peak([], [("graph", call), ("born", theirs)], graphs=(graph,))
    assert held_by(found) == {"activation": 4 * KIB, "temporary": KIB}


def test_sums_of_gradients_are_made_in_place() -> None:
    first = block(8 * KIB, phase="backward", born=21, died=24, node=1)
    other = block(8 * KIB, phase="backward", born=22, died=24, node=2)
    total = block(8 * KIB, phase="backward", born=23, node=3)
    events: list[Event] = [("born", first), ("born", other), ("born", total), ("died", first), ("died", other)]
    assert peak([], events, joins=[(total, first)]).peak_bytes == 16 * KIB
    assert peak([], events).peak_bytes == 24 * KIB


def test_what_stays_on_the_host_is_not_counted() -> None:
    data, batch = block(64 * KIB, phase="other", device=False, born=1), block(KIB, phase="other", born=2)
    earlier = block(KIB, phase="other", born=2, touched=3)
    weights = block(2 * KIB, category="parameter", device=False, born=1)
    found = peak([data, batch, earlier, weights], [("born", block(KIB))])
    assert held_by(found) == {"input": KIB, "parameter": 2 * KIB, "activation": KIB}
    assert found.given_bytes == 3 * KIB
    assert peak([data, batch, earlier, weights], [], all_on_device=True).peak_bytes == 68 * KIB
