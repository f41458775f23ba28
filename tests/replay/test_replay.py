"""Benchmark scripts of ops: they run, they hold the recorded inputs, and nothing of a trace becomes code in them."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perfscope.analyzers.readers.load import load
from perfscope.analyzers.replay import SIGNATURES, replay_script
from perfscope.commands.replay import replay
from perfscope.model.errors import UsageError
from perfscope.model.trace import Trace
from tests.build import TraceBuilder

F, INT, N, L = "float", "long int", "Scalar", "ScalarList"


def recorded(name: str, shapes: list[Any], dtypes: list[Any], values: list[str] | None = None) -> Trace:
    builder = TraceBuilder()
    for start in (0, 1000):
        builder.op(name, start, start + 100 + start / 100, shapes=json.dumps(shapes), dtypes=json.dumps(dtypes),
                   values=None if values is None else json.dumps(values))  # fmt: skip
    return builder.build()


def ran(script: str, folder: Path, *arguments: str, launch: tuple[str, ...] = ()) -> str:
    path = folder / "bench.py"
    path.write_text(script)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *launch, str(path), *arguments], capture_output=True, text=True, timeout=120,
                          env=environment, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


OPS: dict[str, tuple[list[Any], list[Any], list[str] | None]] = {
    "mm": ([[8, 16], [16, 4]], [F, F], ["", ""]),
    "addmm": ([[4], [8, 16], [16, 4], [], []], [F, F, F, N, N], ["", "", "", "1", "1"]),
    "bmm": ([[2, 8, 16], [2, 16, 4]], [F, F], None),
    "linear": ([[8, 16], [4, 16], [4]], [F, F, F], None),
    "conv2d": ([[1, 3, 8, 8], [4, 3, 3, 3], [], [], [], [], []], [F, F, "", L, L, L, N],
               ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "1"]),
    "scaled_dot_product_attention": ([[1, 2, 8, 4]] * 3 + [[]] * 5, [F, F, F, "", N, N, "", N],
                                     ["", "", "", "", "0.", "True", "0.125", "False"]),
    "_softmax": ([[4, 8], [], []], [F, N, N], ["", "-1", "False"]),
    "layer_norm": ([[4, 8], [], [8], [8], [], []], [F, "ScalarList", F, F, N, N], None),
    "batch_norm": ([[2, 3, 4, 4], [3], [3], [3], [3], [], [], [], []], [F, F, F, F, F, N, N, N, N], None),
    "embedding": ([[10, 4], [2, 3], [], [], []], [F, "long int", N, N, N], None),
    "index_select": ([[10, 4], [], [6]], [F, N, "long int"], ["", "0", ""]),
    "nll_loss_forward": ([[4, 10], [4], [], [], []], [F, "long int", "", N, N], None),
    "cat": ([[[2, 3], [2, 3]], []], ["TensorList", N], None),
    "add": ([[4, 4], [4, 4], []], [F, F, N], None),
    "mul": ([[4, 4], []], ["c10::BFloat16", N], None),
    "mean": ([[4, 8], [], [], []], [F, "ScalarList", N, ""], None),
    "sum": ([[4, 8], []], [F, ""], None),
    "gelu": ([[4, 8], []], [F, ""], None),
    "copy_": ([[4, 8], [4, 8], []], [F, "c10::Half", N], None),
    "embedding_dense_backward": ([[2, 3, 4], [2, 3], [], [], []], [F, INT, N, N, N], ["", "", "10", "-1", "False"]),
}  # fmt: skip


def test_scripts_of_common_ops_run(tmp_path: Path) -> None:
    # all in one process: the import of torch is what takes time
    parts = []
    for name, inputs in OPS.items():
        script = replay_script(recorded(f"aten::{name}", *inputs), name)
        parts.append(f"exec(compile({script!r}, {name!r}, 'exec'), {{'__name__': '__main__'}})")
    printed = ran("\n".join(parts), tmp_path, "--device", "cpu", "--repeat", "2")
    assert [line.split()[0] for line in printed.splitlines() if line.startswith("aten::")] == [
        f"aten::{name}" for name in OPS
    ]
    assert printed.count("recorded: 105.0 us (time on the host, median of 2 calls)") == len(OPS)


@pytest.mark.slow
@pytest.mark.parametrize("name", SIGNATURES)
def test_torch_has_every_op(name: str) -> None:
    torch = pytest.importorskip("torch")
    (count, named) = (len(part.split()) for part in (*SIGNATURES[name].split(";"), "")[:2])
    schemas = [
        getattr(getattr(torch.ops.aten, name), each)._schema for each in getattr(torch.ops.aten, name).overloads()
    ]
    texts = [{argument.name for argument in schema.arguments if argument.kwarg_only} for schema in schemas]
    names = {text.partition("=")[0] for text in SIGNATURES[name].partition(";")[2].split()}
    assert any(len(schema.arguments) >= count + named and names <= text
               for schema, text in zip(schemas, texts, strict=True))  # fmt: skip


def test_device_time_is_what_is_recorded_where_there_is_some() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 100, external_id=1, shapes="[[8,8],[8,8]]", dtypes='["float","float"]')
    builder.launched("gemm", 10, 50, 80, correlation=1, external_id=1)
    script = replay_script(builder.build(), "aten::mm")
    assert literals(script)["RECORDED_US"] == 30
    assert literals(script)["RECORDED"] == "device work, median of 1 calls"


def test_of_a_name_it_is_the_shapes_that_took_most_and_a_row_is_itself() -> None:
    builder = TraceBuilder()
    for start, end, size in ((0, 10, 4), (20, 30, 4), (40, 90, 8)):
        builder.op("aten::mm", start, end, shapes=json.dumps([[size, size]] * 2), dtypes='["float","float"]')
    trace = builder.build()
    assert [literals(replay_script(trace, op))["ARGUMENTS"][0][2] for op in ("mm", "0")] == [(8, 8), (4, 4)]


def test_shapes_of_a_run_are_in_its_detail_pass() -> None:
    builder = TraceBuilder(recorded=frozenset({"host_ops"}))
    builder.op("aten::mm", 0, 100)
    builder.detail = recorded("aten::mm", [[4, 4], [4, 4]], [F, F])
    values = literals(replay_script(builder.build(), "mm"))
    assert values["ARGUMENTS"][0][2] == (4, 4)
    assert values["RECORDED"] == "time on the host in the detail pass, median of 2 calls"


def test_without_shapes_there_is_no_script() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 100)
    with pytest.raises(UsageError, match="record_shapes=True"):
        replay_script(builder.build(), "mm")


def literals(script: str) -> dict[str, Any]:
    """The values that the script assigns, which are all literals."""
    names = {"OP", "ARGUMENTS", "NAMED", "CHOSEN", "RECORDED_US", "RECORDED", "OPERATION", "ELEMENTS", "DTYPE", "RANKS"}
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(script).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in names
    }


EVIL = "__import__('os').system('touch pwned')"


@pytest.mark.parametrize(
    ("name", "shapes", "dtypes", "values"),
    [
        (f"aten::{EVIL}", [[2, 2], [2, 2]], [F, F], None),
        ("aten::mm\n" + EVIL, [[2, 2], [2, 2]], [F, F], None),
        ("aten::system", [[2, 2], [2, 2]], [F, F], None),
        ("aten::mm", [[EVIL, 2], [2, 2]], [F, F], None),
        ("aten::mm", [[2, 2], [2, 2]], [EVIL, F], None),
        ("aten::mm", [[2.5, 2], [2, 2]], [F, F], None),
        ("aten::mm", [[-2, 2], [2, 2]], [F, F], None),
        ("aten::mm", [[2**60, 2**60], [2, 2]], [F, F], None),
        ("aten::mm", [[True, 2], [2, 2]], [F, F], None),
        ("aten::mm", EVIL, [F, F], None),
        ("aten::mm", [[2, 2]], [F], None),
    ],
)
def test_hostile_inputs_are_refused(name: str, shapes: Any, dtypes: Any, values: Any) -> None:
    trace = recorded(name, shapes, dtypes, values)
    for op in (name, "0"):
        with pytest.raises(UsageError) as refused:
            replay_script(trace, op)
        assert EVIL not in str(refused.value)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("value", [EVIL, "[1, " + EVIL + "]", "1e999", "()", "9" * 300])
def test_values_that_are_no_numbers_are_not_taken(value: str) -> None:
    trace = recorded("aten::_softmax", [[4, 8], [], []], [F, N, N], ["", value, "False"])
    assert literals(replay_script(trace, "_softmax"))["ARGUMENTS"][1] == ("value", -1)
    assert literals(replay_script(trace, "_softmax"))["CHOSEN"] == [1]


def test_strides_are_those_recorded(tmp_path: Path, corpus: Path) -> None:
    (trace,) = load(corpus / "kineto" / "TraceLens__h100_qwen1.5-0.5b.json.gz")
    script = replay_script(trace, "aten::mm")
    assert literals(script)["ARGUMENTS"] == [
        ("tensor", "bfloat16", (8944, 1024), (1024, 1), None),
        ("tensor", "bfloat16", (1024, 2816), (1, 1024), None),
    ]


def collective(operation: str) -> Trace:
    builder = TraceBuilder()
    builder.kernel("ncclDevKernel", 0, 100, communication=True)
    builder.row("collectives", name=builder.code(operation), start_ns=0, end_ns=100_000, kernel=0, slice=-1,
                group=-1, description=-1, group_size=8, ranks=-1, elements_in=1000, elements_out=1000,
                dtype=builder.code("c10::BFloat16"), sequence=-1, peer=-1)  # fmt: skip
    return builder.build()


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "broadcast"])
def test_scripts_of_collectives_run(operation: str, tmp_path: Path) -> None:
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    script = replay_script(collective(operation), operation)
    printed = ran(script, tmp_path, "--backend", "gloo", "--repeat", "2", launch=launch)
    size = 2000 * (2 if operation == "all_gather" else 1)
    assert f"{operation} of {size:,} B, 2 ranks, gloo" in printed
    assert "recorded with 8 ranks: 100.0 us" in printed


def test_a_collective_that_was_not_recorded_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no broadcast"):
        replay_script(collective("all_reduce"), "broadcast")


def test_the_command_writes_a_file(tmp_path: Path, corpus: Path) -> None:
    path, out = corpus / "kineto" / "TraceLens__h100_bert-small.json.gz", tmp_path / "op.py"
    arguments = [str(path), "--op", "addmm", "-o", str(out)]
    CliRunner().invoke(replay, arguments, catch_exceptions=False, standalone_mode=False)
    assert literals(out.read_text())["OP"] == "addmm"
