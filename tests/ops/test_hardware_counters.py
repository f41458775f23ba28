"""FLOPs and bytes of ops from hardware counters, compared with those from their shapes."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.ops import counted_calls
from perfscope.analyzers.ops.hardware_counters import PRECISIONS
from perfscope.analyzers.query import QUERIES, Database
from perfscope.dashboards.report.sections.hardware_counters import counted_sections
from perfscope.model.trace import MISSING, Trace
from tests.build import TraceBuilder

SHAPES = {"shapes": "[[64, 32], [32, 16]]", "dtypes": '["float", "float"]'}


def instructions(letter: str, add: float, mul: float, fma: float) -> dict[str, float]:
    counts = {"add": add, "mul": mul, "fma": fma}
    return {f"smsp__sass_thread_inst_executed_op_{letter}{op}_pred_on.sum": count for op, count in counts.items()}


def counted(*ranges: tuple[str, int, dict[str, float]], ops: tuple[tuple[str, dict[str, str]], ...]) -> Trace:
    """``ranges``: name, place of the op (``MISSING``: not joined) and counters; a line of Python around each op."""
    builder = TraceBuilder()
    for number, (name, recorded) in enumerate(ops):
        builder.python(f"model.py({number + 1}): forward", 100 * number, 100 * number + 90)
        builder.op(name, 100 * number + 10, 100 * number + 80, **recorded)
        builder.call("cudaLaunchKernel", 100 * number + 20, 100 * number + 30)
    for number, (name, op, counters) in enumerate(ranges):
        for metric, value in counters.items():
            builder.row("kernel_counters", number=number, name=builder.code(name), ordinal=0, call=op,
                        op=op if op == MISSING else 2 * op + 1, basis=builder.code("as the test says"),
                        metric=builder.code(metric), value=value)  # fmt: skip
    return builder.build()


def test_flops_are_adds_multiplications_and_twice_the_fused() -> None:
    trace = counted(
        ("a", 0, instructions("f", 1, 10, 100) | instructions("d", 1000, 0, 0)),
        ("b", 0, instructions("f", 5, 0, 0) | instructions("d", 0, 0, 7)),
        ops=(("aten::mm", {}),),
    )
    (call,) = trace.fact(counted_calls)
    assert call.flops == {"float64": 1014, "float32": 216}
    assert call.total_flops == 1230
    assert (call.name, call.kernels, call.joined) == ("aten::mm", ("a", "b"), 2)


@pytest.mark.parametrize("lacking", ["add", "mul", "fma"])
def test_a_precision_of_which_a_counter_lacks_is_not_known(lacking: str) -> None:
    counters = {name: value for name, value in instructions("f", 1, 1, 1).items() if f"f{lacking}_" not in name}
    (call,) = counted(("a", 0, counters), ops=(("aten::mm", {}),)).fact(counted_calls)
    assert not call.flops
    assert call.total_flops is None


@pytest.mark.parametrize(
    ("counters", "moved"),
    [
        ({"dram__bytes_read.sum": 30, "dram__bytes_write.sum": 12}, 42),
        ({"dram__bytes.sum": 50, "dram__bytes_read.sum": 30, "dram__bytes_write.sum": 12}, 50),
        ({"dram__bytes_read.sum": 30}, None),
        ({"dram__bytes.sum": -1}, None),
        ({"dram__bytes.sum": float("nan")}, None),
    ],
)
def test_bytes_are_those_of_device_memory(counters: dict[str, float], moved: float | None) -> None:
    (call,) = counted(("a", 0, counters), ops=(("aten::mm", {}),)).fact(counted_calls)
    assert call.dram_bytes == moved


def test_what_is_measured_stands_beside_what_the_shapes_ask_for() -> None:
    trace = counted(
        ("sgemm", 0, instructions("f", 0, 0, 32768) | {"dram__bytes.sum": 20_000}), ops=(("aten::mm", SHAPES),)
    )
    (call,) = trace.fact(counted_calls)
    assert (call.total_flops, call.modelled_flops) == (65536, 2 * 64 * 32 * 16)
    assert (call.dram_bytes, call.modelled_bytes) == (20_000, 4 * (64 * 32 + 32 * 16 + 64 * 16))
    assert call.tensor_cores is False


def test_an_op_without_a_product_has_no_flops_by_shapes() -> None:
    recorded = {"shapes": "[[64], [64]]", "dtypes": '["float", "float"]'}
    trace = counted(("elementwise_kernel", 0, instructions("f", 64, 0, 0)), ops=(("aten::add", recorded),))
    (call,) = trace.fact(counted_calls)
    assert (call.total_flops, call.modelled_flops, call.modelled_bytes) == (64, None, 3 * 64 * 4)


def test_a_cost_of_an_op_above_takes_the_kernels_below_it() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 90, **SHAPES)
    builder.op("backend::mm", 10, 80)
    for number, start in enumerate((20, 40)):
        builder.call("cudaLaunchKernel", start, start + 5)
        for metric, value in instructions("f", 0, 0, 100).items():
            builder.row("kernel_counters", number=number, name=builder.code("k"), ordinal=0, call=number, op=1,
                        basis=builder.code("b"), metric=builder.code(metric), value=value)  # fmt: skip
    (call,) = builder.build().fact(counted_calls)
    assert (call.name, call.total_flops, call.modelled_flops) == ("aten::mm", 400, 2 * 64 * 32 * 16)


@pytest.mark.parametrize(
    ("kernel", "counters", "used"),
    [
        ("ampere_sgemm_128x64_tn", {}, False),
        ("ampere_fp16_s16816gemm_fp16_128x64_tn", {}, True),
        ("mystery", {}, None),
        ("mystery", {"sm__inst_executed_pipe_tensor.sum": 9}, True),
        ("ampere_fp16_s16816gemm_fp16_128x64_tn", {"sm__inst_executed_pipe_tensor.sum": 0}, False),
    ],
)
def test_tensor_cores_are_counted_or_named(kernel: str, counters: dict[str, float], used: bool | None) -> None:
    (call,) = counted((kernel, 0, {"x": 1, **counters}), ops=(("aten::mm", {}),)).fact(counted_calls)
    assert call.tensor_cores is used


def test_ranges_of_no_op_stay_alone() -> None:
    trace = counted(("a", MISSING, {"x": 1}), ("a", MISSING, {"x": 2}), ("b", 0, {"x": 3}), ops=(("aten::mm", {}),))
    calls = trace.fact(counted_calls)
    assert [(call.name, call.op, call.joined) for call in calls] == [
        ("a", MISSING, 0), ("a", MISSING, 0), ("aten::mm", 1, 1),
    ]  # fmt: skip


def many() -> Trace:
    """Two calls of a product of which one was counted in part, and an op of one kernel without a name."""
    return counted(
        ("g", 0, instructions("f", 0, 0, 8) | instructions("h", 1, 0, 0)),
        ("g", 1, instructions("h", 1, 0, 0)),
        ("__missing__", 2, instructions("f", 2, 0, 0) | instructions("h", 0, 0, 0)),
        ops=(("aten::mm", {}), ("aten::mm", {}), ("aten::relu", {})),
    )


def test_the_report_says_which_op_executed_what() -> None:
    (section,) = counted_sections(analyze(many()).of("hardware_counters"))
    assert section.summary == "3 ranges with 6 counters, as the test says"
    shown = section.table("")
    assert shown.column("op") == ("aten::relu", "aten::mm")
    assert shown.column("FLOP measured") == (2, None)
    assert shown.column("line") == ("model.py:3", "model.py:1")
    said = " ".join(section.texts())
    assert "record times in another run" in said
    assert "tensor cores" in said
    assert "one range is of a kernel without a recorded name" in said


def test_without_counters_there_is_no_section() -> None:
    assert counted_sections(analyze(counted(ops=(("aten::mm", {}),))).of("hardware_counters")) == ()


def answer(trace: Trace, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = Database([trace]).query(QUERIES[name].sql).to_dict("records")
    return rows


def test_queries_answer_by_op() -> None:
    flops = {row["op"]: row for row in answer(many(), "op_flops")}
    assert (flops["aten::relu"]["flops"], flops["aten::relu"]["kernels"]) == (2, 1)
    assert pd.isna(flops["aten::mm"]["flops"])  # not of every call
    assert flops["aten::mm"]["float16_flops"] == 2
    counters = {(row["op"], row["metric"]): row for row in answer(many(), "counters")}
    added = counters["aten::mm", "smsp__sass_thread_inst_executed_op_hadd_pred_on.sum"]
    assert (added["ranges"], added["joined"], added["total"], added["most"]) == (2, 2, 2, 1)


def test_rows_have_module_line_and_shapes() -> None:
    trace = counted(("g", 0, {"x": 1}), ("u", MISSING, {"x": 1}), ops=(("aten::mm", SHAPES),))
    joined, alone = Database([trace]).query("select * from counted_ops").itertuples()
    assert (joined.file, joined.line, joined.shapes) == ("model.py", 1, SHAPES["shapes"])
    assert (alone.name, alone.basis) == ("u", "as the test says")
    assert pd.isna(alone.row)


def test_precisions_have_columns() -> None:
    shown = Database([many()]).query("select * from counted_ops").columns
    assert {f"{precision}_flops" for precision in PRECISIONS} < set(shown)
