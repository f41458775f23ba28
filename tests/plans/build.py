"""Small plans by hand, and the folder that holds one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from perfscope.analyzers.devices.target_text import parse_target
from perfscope.analyzers.readers.compiled import read_plan_folder
from perfscope.model.compile_log import ProgramLine
from perfscope.model.documents.torch_plan import SCHEMA, write_plan
from perfscope.model.torch_plan import PlannedGraph, PlannedKernel, TorchPlan
from perfscope.model.trace import Trace

PLACE = ProgramLine(file="train.py", line=7, function="forward")


def kernel(name: str = "triton_poi_fused_add_0", **changes: Any) -> PlannedKernel:
    """A pointwise kernel that reads 2 MB and writes 1 MB."""
    parts: dict[str, Any] = {
        "name": name,
        "kind": "pointwise",
        "members": ("op0",),
        "ops": ("aten.add",),
        "places": (PLACE,),
        "read_bytes": 2_000_000,
        "written_bytes": 1_000_000,
        "dtype": "bfloat16",
    }
    return PlannedKernel(**{**parts, **changes})


def product(**changes: Any) -> PlannedKernel:
    """A matrix product of 1024 x 1024 x 1024."""
    parts: dict[str, Any] = {
        "kind": "product",
        "ops": ("aten.mm",),
        "read_bytes": 4 << 20,
        "written_bytes": 2 << 20,
        "flops": 2 * 1024**3,
        "shape": "1024x1024x1024",
    }
    return kernel("extern_kernels.mm", **{**parts, **changes})


def graph(*kernels: PlannedKernel, **changes: Any) -> PlannedGraph:
    """A forward graph of those kernels."""
    parts: dict[str, Any] = {
        "compile_id": "0/0",
        "direction": "forward",
        "function": "forward",
        "place": PLACE,
        "nodes": len(kernels),
        "kernels": kernels,
    }
    return PlannedGraph(**{**parts, **changes})


def plan(*graphs: PlannedGraph, **changes: Any) -> TorchPlan:
    """A complete plan of a program that compiles itself."""
    parts: dict[str, Any] = {
        "schema": SCHEMA,
        "name": "train",
        "compiled_by": "program",
        "target": "h100",
        "versions": {"torch": "2.13.0", "triton": "3.7.0"},
        "graphs": graphs,
        "stopped": "after four steps",
    }
    return TorchPlan(**{**parts, **changes})


def write_run(folder: Path, held: TorchPlan) -> Path:
    """A run folder with that plan."""
    (folder / "plans").mkdir(parents=True, exist_ok=True)
    write_plan(folder / "plans" / "00.train.json", held)
    return folder


def trace_of(folder: Path, held: TorchPlan, target: str | None = "h100") -> Trace:
    """The trace that is read of it, for a target."""
    trace = read_plan_folder(write_run(folder, held))
    return replace(trace, target=None if target is None else parse_target(target, None))
