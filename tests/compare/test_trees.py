"""Call trees side by side: what came, went, moved and took longer, and rows that sum to the change."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.compare.runs.comparison import compare
from perfscope.analyzers.compare.runs.trees import MOST_DEPTH, path_change, tree_change
from perfscope.analyzers.readers.load import load_all
from perfscope.dashboards.report.compare import json
from perfscope.dashboards.report.compare.render import render_markdown
from perfscope.model.documents.comparison import Tree, of
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace
from tests.build import TraceBuilder

US = 1000

Call = tuple[str, int, list["Call"]]
"""Name, us of the kernel that it launches itself (0: none), calls inside."""


def trace_of(calls: list[Call], *, device: bool = True) -> Trace:
    builder = TraceBuilder()
    clock = [0]
    number = [0]

    def add(name: str, us: int, inner: list[Call]) -> None:
        begin = clock[0]
        clock[0] += 2
        if us and device:
            number[0] += 1
            builder.launched(f"k{number[0]}", clock[0], clock[0] + 10, clock[0] + 10 + us, correlation=number[0])
            clock[0] += 3
        elif us:
            clock[0] += us
        for call in inner:
            add(*call)
        clock[0] += 100 + us if device else 0
        builder.op(name, begin, clock[0])

    if device:
        builder.kernel("whole", 0, 1)
    for call in calls:
        add(*call)
    builder.step(1, 0, clock[0] + 1000)
    return builder.build()


def rows_of(base: list[Call], head: list[Call]) -> tuple[Tree, list[tuple[str, str, int]]]:
    change = tree_change(trace_of(base), trace_of(head))
    assert change is not None
    return change, [(row.change, "/".join(row.path), row.delta_ns) for row in change.rows]


BLOCK: Call = ("norm", 0, [("mean", 20, []), ("mul", 10, [])])


def test_equal_trees_are_folded() -> None:
    change, rows = rows_of([("mm", 100, []), BLOCK], [("mm", 100, []), BLOCK])
    assert rows == []
    assert (change.nodes, change.equal, change.time) == (4, 4, "device")


def test_what_came_went_and_took_longer() -> None:
    change, rows = rows_of(
        [("block", 0, [("mm", 100, []), ("relu", 10, []), BLOCK])],
        [("block", 0, [("mm", 150, []), ("gelu", 30, []), BLOCK])],
    )
    assert rows == [
        ("slower", "block/mm", 50 * US),
        ("added", "block/gelu", 30 * US),
        ("removed", "block/relu", -10 * US),
    ]
    assert (change.nodes, change.equal) == (7, 4)


def test_a_subtree_under_another_caller_moved() -> None:
    change, rows = rows_of([("a", 5, [BLOCK]), ("b", 5, [])], [("a", 5, []), ("b", 5, [BLOCK])])
    assert rows == [("moved", "b/norm", 0)]
    assert change.rows[0].was == ("a", "norm")
    assert change.rows[0].nodes == 3


def test_more_calls_are_a_row_though_they_take_no_longer() -> None:
    _, rows = rows_of([("view", 0, []), ("mm", 100, [])], [("view", 0, []), ("view", 0, []), ("mm", 100, [])])
    assert rows == [("faster", "view", 0)]


def test_without_a_device_the_calls_themselves_count() -> None:
    change = tree_change(trace_of([("mm", 100, [])], device=False), trace_of([("mm", 140, [])], device=False))
    assert change is not None
    assert (change.time, change.rows[0].delta_ns) == ("host", 40 * US)
    assert tree_change(trace_of([("mm", 100, [])], device=False), trace_of([("mm", 140, [])])) is None


def instructions_of(ops: list[tuple[str, int]]) -> Trace:
    """Timed instructions of a program that was not recorded, in a step; ``while`` is around others."""
    builder = TraceBuilder(recorded=frozenset({"host_ops"}))
    clock = 0
    for name, us in ops:
        builder.row(
            "hlo_ops", start_ns=clock * US, end_ns=(clock + us) * US, name=builder.code(name), ordinal=0,
            module=builder.code("jit_step"), program_id=3, run_id=1, encloses=name.startswith("while"),
        )  # fmt: skip
        clock += 0 if name.startswith("while") else us
    builder.step(1, 0, clock * US)
    return builder.build()


def test_of_xla_programs_the_instructions_are_compared_whatever_their_numbers() -> None:
    base = instructions_of([("while.1", 50), ("fusion.3", 20), ("dot.7", 30)])
    head = instructions_of([("while.2", 70), ("fusion.4", 20), ("dot.9", 45), ("copy.1", 5)])
    change = tree_change(base, head)
    assert change is not None
    assert (change.time, change.base_ns, change.head_ns) == ("instructions", 50 * US, 70 * US)
    changes = {"/".join(row.path): (row.change, row.delta_ns) for row in change.rows}
    assert changes == {"jit_step/dot": ("slower", 15 * US), "jit_step/copy": ("added", 5 * US)}
    assert tree_change(base, trace_of([("mm", 100, [])])) is None


NAMES = st.sampled_from("abc")
CALLS = st.recursive(
    st.tuples(NAMES, st.integers(0, 9), st.just([])),
    lambda inner: st.tuples(NAMES, st.integers(0, 9), st.lists(inner, max_size=3)),
    max_leaves=8,
)


@given(st.lists(CALLS, min_size=1, max_size=4), st.lists(CALLS, min_size=1, max_size=4))
def test_rows_sum_to_the_change(base: list[Call], head: list[Call]) -> None:
    change, _ = rows_of(base, head)
    assert sum(row.delta_ns for row in change.rows) + change.equal_ns == change.head_ns - change.base_ns
    assert change.base_ns == sum(kernel_us(call) for call in base) * US
    back = tree_change(trace_of(head), trace_of(base))
    assert back is not None
    assert sorted(-row.delta_ns for row in back.rows) == sorted(row.delta_ns for row in change.rows)


def kernel_us(call: Call) -> int:
    return call[1] + sum(kernel_us(inner) for inner in call[2])


def test_the_documents_of_a_comparison_have_both() -> None:
    base, head = trace_of([("mm", 100, [])]), trace_of([("mm", 100, []), ("gelu", 30, [])])
    values = json.document(compare([base], [head]))
    document = of(values)
    assert document.tree is not None
    assert document.tree.rows[0].change == "added"
    assert document.path is not None
    assert sum(row.head_ns for row in document.path.rows) == document.path.head_ns
    assert "gelu" in render_markdown(document).split("Call tree")[1]
    values["tree"]["rows"][0]["delta_ns"] += 1
    with pytest.raises(DataError, match="tree: its rows sum to"):
        of(values)


@pytest.mark.slow
@pytest.mark.corpus
def test_public_traces_of_one_model_eager_and_compiled(corpus: Path) -> None:
    names = ("HolisticTraceAnalysis__trace_diff_control.json.gz", "HolisticTraceAnalysis__trace_diff_test.json.gz")
    base, head = (load_all(corpus / "kineto" / name)[0] for name in names)
    change, path = tree_change(base, head), path_change(base, head)
    assert change is not None
    assert path is not None
    came = [row for row in change.rows if row.change == "added"]
    assert [row.path[-1] for row in came] == [
        "autograd::engine::evaluate_function: CompiledFunctionBackward",
        "CompiledFunction",
    ]
    assert [row.delta_ns for row in came] == [36_858_999, 23_709_834]
    assert sum(row.head_ns for row in path.rows) == path.head_ns


def test_calls_deeper_than_the_tree_count_with_their_caller() -> None:
    def nested(extra: int) -> Trace:
        builder = TraceBuilder()
        for level in range(3000):
            builder.op("op", level, 10_000 - level)
        builder.launched("leaf", 4000, 4010, 4020 + extra, correlation=1)
        return builder.build()

    change = tree_change(nested(0), nested(5))
    assert change is not None
    assert (change.base_ns, change.head_ns) == (10 * US, 15 * US)
    assert [(row.change, len(row.path), row.delta_ns) for row in change.rows] == [("slower", MOST_DEPTH, 5 * US)]


def flame_of(base: list[Call], head: list[Call]) -> list[tuple[str, int, str, int, int]]:
    change = tree_change(trace_of(base), trace_of(head))
    assert change is not None
    return [(node.name, node.parent, node.change, node.base_ns // US, node.head_ns // US) for node in change.flame]


def test_a_flame_graph_has_both_trees_callers_first() -> None:
    base = [("layer", 0, [("mm", 100, []), ("gelu", 50, [])]), ("loss", 20, [])]
    head = [("layer", 0, [("mm", 150, []), ("relu", 30, [])]), ("loss", 20, [])]
    assert flame_of(base, head) == [
        ("all", -1, "slower", 170, 200),
        ("layer", 0, "slower", 150, 180),
        ("loss", 0, "equal", 20, 20),
        ("mm", 1, "slower", 100, 150),
        ("gelu", 1, "removed", 50, 0),
        ("relu", 1, "added", 0, 30),
    ]


def test_in_a_flame_graph_what_moved_is_called_so_and_the_short_is_left_out() -> None:
    tiny: Call = ("tiny", 1, [])
    moved = flame_of([("a", 5000, [BLOCK, tiny]), ("b", 100, [])], [("a", 5000, [tiny]), ("b", 100, [BLOCK])])
    assert [(name, change) for name, _, change, *_ in moved] == [
        ("all", "equal"),
        ("a", "faster"),
        ("b", "slower"),
        ("norm", "moved"),
        ("norm", "moved"),
        ("mean", "moved"),
        ("mul", "moved"),
        ("mean", "moved"),
        ("mul", "moved"),
    ]


def test_a_document_whose_flame_graph_has_a_loop_is_refused() -> None:
    values = json.document(compare([trace_of([("mm", 100, [])])], [trace_of([("mm", 120, [])])]))
    assert of(values).tree is not None
    values["tree"]["flame"][0]["parent"] = 1
    with pytest.raises(DataError, match="a call comes before its caller"):
        of(values)
