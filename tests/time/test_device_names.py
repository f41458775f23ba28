"""Fixes name calls of the recorded device: one table of names, chosen by the devices of the recording."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

import pytest
from msgspec.structs import replace

from perfscope.analyzers import ranks, time
from perfscope.analyzers.engine import judge
from perfscope.analyzers.registry import load_rule
from perfscope.analyzers.time.fixes import (
    NAMES,
    DeviceKind,
    Situation,
    cause_fix,
    launch_fix,
    memory_fix,
    read_fix,
    situation,
)
from perfscope.model.compile_log import CodeLine, Compile, CompileLog
from perfscope.model.documents.causes import CAUSES
from perfscope.model.frames.kinds import FrameKind
from tests.build import EVERYTHING, TraceBuilder
from tests.graphs import GraphBuilder

READS = ("item", "to_host", "copy", "wait", "free", "other")
CUDA_WORDS = ("torch.cuda", "CUDA", "cuda", "nvidia", "NCCL")
KINDS: tuple[DeviceKind, ...] = get_args(DeviceKind)


@pytest.mark.parametrize("device", KINDS)
def test_no_fix_names_calls_of_another_device(device: DeviceKind) -> None:
    where = Situation(framework="torch", phase="training", device=device)
    fixes = [where.frame_fix(kind) for kind in FrameKind] + [cause_fix(cause, where) for cause in CAUSES]
    fixes += [read_fix(kind, where) for kind in READS] + [launch_fix(where), memory_fix(where)]
    assert [fix for fix in fixes if "{" in fix] == []
    if device not in ("cuda", "hip"):
        assert [fix for fix in fixes if any(word in fix for word in CUDA_WORDS)] == []
    none = Situation(framework="none", phase="unknown", device=device)
    runtime = [cause_fix(cause, none) for cause in CAUSES] + [read_fix(kind, none) for kind in READS]
    assert any("hipMallocAsync" in fix for fix in runtime) is (device == "hip")
    assert any("cudaMallocAsync" in fix for fix in runtime) is (device != "hip")


def test_each_device_has_each_name() -> None:
    assert [kind for kind in KINDS if set(NAMES[kind]) != set(NAMES["cuda"])] == []


@pytest.mark.parametrize("device", KINDS)
def test_a_model_that_is_compiled_is_not_told_to_be_compiled(device: DeviceKind) -> None:
    for compiled in (False, True):
        where = Situation(framework="torch", phase="training", device=device, compiled=compiled)
        fixes = [where.frame_fix(kind) for kind in FrameKind] + [cause_fix(cause, where) for cause in CAUSES]
        fixes.append(launch_fix(where))
        assert [fix for fix in fixes if "{" in fix] == []
        assert any("`torch.compile(model" in fix for fix in fixes) is not compiled
        assert any("for the code that still runs eagerly" in fix for fix in fixes) is compiled


def _compiled_by(*places: str | None, graphs: int = 1) -> CompileLog:
    compiles = tuple(
        Compile(
            compile_id=f"{number}/0",
            function="forward",
            place=None if file is None else CodeLine(file=file, line=1),
            traced_graphs=graphs,
        )
        for number, file in enumerate(places)
    )
    return CompileLog(path="log", compiles=compiles)


@pytest.mark.parametrize(
    ("log", "op", "compiled"),
    [
        (_compiled_by("/home/me/model.py"), "aten::mm", True),
        (_compiled_by("/usr/lib/torch/optim/adamw.py"), "Torch-Compiled Region: 0/0", False),
        (_compiled_by("/home/me/model.py", graphs=0), "aten::mm", False),
        (None, "Torch-Compiled Region: 0/0", True),
        (None, "aten::mm", False),
    ],
)
def test_whether_the_program_compiles_is_known_by_the_log_or_the_ranges(
    log: CompileLog | None, op: str, compiled: bool
) -> None:
    build = TraceBuilder()
    build.op(op, 0, 10)
    assert replace(build.build(), compile_log=log).fact(situation).compiled is compiled


@pytest.mark.parametrize(
    ("name", "call", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", "hipLaunchKernel", "cuda"),  # the name of the device decides
        ("AMD Instinct MI300X VF", "", "hip"),
        ("Ascend NPU", "Node@launch", "npu"),
        ("Intel(R) Data Center GPU Max 1550", "", "xpu"),
        ("ARTEMIS", "", "mtia"),
        ("TPU v5 lite", "", "tpu"),
        (None, "cudaLaunchKernel", "cuda"),
        (None, "cuLaunchKernel", "cuda"),
        (None, "hipLaunchKernel", "hip"),
        (None, "AscendCL@aclnnAddmm", "npu"),
        (None, "zeCommandListAppendLaunchKernel", "xpu"),
        (None, "customLaunch", "unknown"),
        ("Some accelerator", "", "unknown"),
    ],
)
def test_the_device_is_known_by_its_name_or_by_its_calls(name: str | None, call: str, kind: DeviceKind) -> None:
    build = TraceBuilder()
    build.row("devices", ordinal=0, name=-1 if name is None else build.code(name))
    if call:
        build.call(call, 1, 2)
    assert build.build().fact(situation).device == kind


def test_without_device_work_it_is_that_of_the_op_graph_or_the_host() -> None:
    assert TraceBuilder(recorded=EVERYTHING - {"device_work"}).build().fact(situation).device == "cpu"
    graph = GraphBuilder(device="npu").graph()
    assert TraceBuilder(op_graph=graph).build().fact(situation).device == "npu"


def test_launches_of_an_ascend_device_get_its_graphs() -> None:
    build = TraceBuilder()
    build.device(name="Ascend NPU")
    build.step(1, 0, 1_000)
    for number in range(10):
        build.op("aten::add", 100 * number, 100 * number + 90, external_id=number)
        build.call("Node@launch", 100 * number + 80, 100 * number + 85, correlation=number)
        build.kernel("add", 100 * number + 86, 100 * number + 90, correlation=number, external_id=number)
    (finding,) = judge(load_rule("launch_bound"), build.build()).findings
    assert "torch.npu.NPUGraph" in finding.advice
    assert "cuda" not in finding.advice.lower()


NOT_CHOSEN = {
    "hung_collective.py": "dumps of NCCL's flight recorder have no device; RCCL's have the same variables",
    "fixes.py": "the table",
}
"""Files whose texts may have names of NVIDIA's tools, with the reason."""


def test_texts_of_rules_have_no_names_of_one_device() -> None:
    found = set()
    for package in (time, ranks):
        for path in Path(package.__path__[0]).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            texts = [
                node.value
                for node in ast.walk(tree)
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented
            ]
            words = ("torch.cuda", "CUDAGraph", "nvidia-smi", "cudaM", "CUDA_ALLOC")
            found |= {path.name for text in texts if any(word in text for word in words)}
    assert found == set(NOT_CHOSEN)
