"""Benchmark scripts of ops: they run, they hold the recorded inputs, and nothing of a trace becomes code in them."""

from __future__ import annotations

import ast
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perfscope.analyzers.readers.load import load_all
from perfscope.model.errors import UsageError
from perfscope.model.trace import SliceKind, Trace
from perfscope.plugins.replay.command import replay
from perfscope.plugins.replay.script import replay_script
from tests import warm
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
    done = warm.run([sys.executable, *launch, str(path), *arguments], capture_output=True, text=True, timeout=120,
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


PROFILED = """
import sys, torch
from torch.profiler import ProfilerActivity, profile
F = torch.nn.functional
x = torch.randn(4, 8, requires_grad=True)
ids = torch.randint(0, 8, (4, 3))
convolution, table = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.Embedding(100, 8)
weights = [torch.randn(5, requires_grad=True) for _ in range(3)]
optimizer = torch.optim.AdamW(weights, fused=True)
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
    F.gelu(F.linear(x, torch.randn(16, 8))).sum().backward()
    convolution(torch.randn(2, 3, 8, 8)).sum().backward()
    table(ids).sum().backward()
    sum(weight.sum() for weight in weights).backward()
    optimizer.step()
    torch.gather(x, 1, ids), x.to(torch.float16), torch.topk(x, 3), x.std(), x.clamp(0, 1), torch.arange(5), x[ids % 4]
    F.scaled_dot_product_attention(*[torch.randn(1, 2, 4, 8)] * 3, is_causal=True)
    F.interpolate(torch.randn(1, 3, 4, 4), scale_factor=2)
    torch.stft(torch.randn(100), 16, return_complex=True, window=torch.ones(16))
profiler.export_chrome_trace(sys.argv[1])
"""


@pytest.mark.slow
def test_every_op_of_a_real_recording_can_be_replayed(tmp_path: Path) -> None:
    """torch gives the parameters of each; for ``aten::index`` the profiler records no indices."""
    ran(PROFILED, tmp_path, str(tmp_path / "trace.json"))
    (trace,) = load_all(tmp_path / "trace.json")
    slices = trace.rows["slices"]
    names = {trace.text(code) for code in set(slices["name"][slices["kind"] == SliceKind.OP].tolist())}
    ops = sorted(name for name in names if name.startswith("aten::"))
    assert len(ops) > 60
    scripts = {name: replay_script(trace, name) for name in ops}
    program = [f"scripts = {scripts!r}", "for name, script in scripts.items():", "    try:",
               "        exec(compile(script, name, 'exec'), {'__name__': '__main__'})",
               "    except SystemExit as said:", "        print('failed', name, said)"]  # fmt: skip
    printed = ran("\n".join(program), tmp_path, "--device", "cpu", "--repeat", "2")
    failed = [line.split()[1] for line in printed.splitlines() if line.startswith("failed")]
    assert failed == ["aten::index"]
    assert "the trace does not have its parameter indices" in printed


def test_an_op_that_torch_does_not_know_needs_its_package(tmp_path: Path) -> None:
    script = replay_script(recorded("vllm::moe_forward", [[8, 16]], [F], [""]), "vllm::moe_forward")
    path = tmp_path / "bench.py"
    path.write_text(script)
    done = warm.run([sys.executable, path], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.strip() == "this torch has no op vllm::moe_forward; --import the package that registers it"


@pytest.mark.parametrize(
    ("op", "shapes", "said"),
    [
        ("aten::__class__", [[8, 16]], "this torch has no op aten::__class__"),
        ("higher_order::cond", [[8, 16]], "this torch has no op higher_order::cond"),
        ("aten::relu", [[1024, 1024, 1024, 1024]], "the inputs of aten::relu cannot be made on cpu"),
    ],
)
def test_inputs_that_cannot_be_made_end_in_one_line(tmp_path: Path, op: str, shapes: list[Any], said: str) -> None:
    path = tmp_path / "bench.py"
    path.write_text(replay_script(recorded(op, shapes, [F], [""]), op))
    done = warm.run([sys.executable, path, "--device", "cpu"], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == 1


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
    assert [literals(replay_script(trace, op))["INPUTS"][0][2] for op in ("mm", "0")] == [(8, 8), (4, 4)]


def test_shapes_of_a_run_are_in_its_detail_pass() -> None:
    builder = TraceBuilder(recorded=frozenset({"host_ops"}))
    builder.op("aten::mm", 0, 100)
    builder.detail = recorded("aten::mm", [[4, 4], [4, 4]], [F, F])
    values = literals(replay_script(builder.build(), "mm"))
    assert values["INPUTS"][0][2] == (4, 4)
    assert values["RECORDED"] == "time on the host in the detail pass, median of 2 calls"


def test_without_shapes_there_is_no_script() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 100)
    with pytest.raises(UsageError, match="record_shapes=True"):
        replay_script(builder.build(), "mm")


def literals(script: str) -> dict[str, Any]:
    """The values that the script assigns, which are all literals."""
    names = {"OP", "INPUTS", "INDICES", "RECORDED_US", "RECORDED", "OPERATION", "ELEMENTS", "DTYPE", "RANKS"}
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
        ("aten::mm.out", [[2, 2], [2, 2]], [F, F], None),
        ("torch.system::mm", [[2, 2], [2, 2]], [F, F], None),
        ("aten::mm", [[EVIL, 2], [2, 2]], [F, F], None),
        ("aten::mm", [[2, 2], [2, 2]], [EVIL, F], None),
        ("aten::mm", [[2.5, 2], [2, 2]], [F, F], None),
        ("aten::mm", [[-2, 2], [2, 2]], [F, F], None),
        ("aten::mm", [[2**60, 2**60], [2, 2]], [F, F], None),
        ("aten::mm", [[True, 2], [2, 2]], [F, F], None),
        ("aten::mm", EVIL, [F, F], None),
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
    assert literals(replay_script(trace, "_softmax"))["INPUTS"][1] == ("unknown",)


def test_strides_are_those_recorded(tmp_path: Path, corpus: Path) -> None:
    (trace,) = load_all(corpus / "kineto" / "TraceLens__h100_qwen1.5-0.5b.json.gz")
    script = replay_script(trace, "aten::mm")
    assert literals(script)["INPUTS"] == [
        ("tensor", "bfloat16", (8944, 1024), (1024, 1)),
        ("tensor", "bfloat16", (1024, 2816), (1, 1024)),
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
    assert literals(out.read_text())["OP"] == "aten::addmm"
