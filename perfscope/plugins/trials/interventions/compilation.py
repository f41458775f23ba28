"""`torch.compile` of a program's models, in its modes."""

from __future__ import annotations

from functools import partial
from typing import Any

from perfscope.plugins.trials.interventions.base import Application, Facts, Intervention, needs_cuda
from perfscope.plugins.trials.interventions.root_modules import RootModules, repeated_blocks

_MAY_CHANGE = (
    "Fused kernels keep intermediate values in registers and sum in another order; random numbers of dropout differ."
)
_EFFORT, _LONG_EFFORT = 3.0, 10.0
"""Launches take longer by the compilation, and with ``max-autotune`` by the measurement of kernels."""
_ANSWERS = ("unfused_ops", "launch_bound", "small_kernels", "host_bound", "unfused_attention")


def _compile(mode: str | None, application: Application) -> None:
    """Compile the forward of each model after the first step; hooks of the model stay outside."""

    def found(modules: list[Any]) -> None:
        import torch

        for module in modules:
            name = type(module).__name__
            if not any(True for _ in module.parameters()):
                application.left(f"{name} has no parameters")
            elif hasattr(module, "_orig_mod"):
                application.left(f"{name}: the program compiles it itself")
            else:
                module.forward = torch.compile(module.forward, mode=mode)
                application.changed(f"{name}.forward is compiled" + (f" with mode={mode!r}" if mode else ""))

    RootModules(found=found)


def _compile_blocks(application: Application) -> None:
    """Compile each of several modules of one class in a list separately: the code of one serves all."""

    def found(modules: list[Any]) -> None:
        import torch

        for root in modules:
            for kind, blocks in repeated_blocks(root):
                for block in blocks:
                    block.forward = torch.compile(block.forward)
                application.changed(f"{len(blocks)} {kind} of {type(root).__name__} are compiled one by one")

    RootModules(found=found)


def _graphs(application: Application) -> None:
    """Record each model into CUDA graphs after the first step, with the arguments of its first call."""
    arguments_of: dict[int, tuple[Any, ...]] = {}

    def enter(module: Any, arguments: tuple[Any, ...]) -> None:
        arguments_of.setdefault(id(module), arguments)

    def found(modules: list[Any]) -> None:
        import torch

        for module in modules:
            name = type(module).__name__
            samples = arguments_of[id(module)]
            if not samples or not all(isinstance(sample, torch.Tensor) and sample.is_cuda for sample in samples):
                application.left(f"{name} is called with more than tensors of a GPU")
                continue
            like = tuple(sample.detach().clone().requires_grad_(sample.requires_grad) for sample in samples)
            torch.cuda.make_graphed_callables(module, like)
            application.changed(f"{name} is replayed from CUDA graphs")

    RootModules(enter=enter, found=found)


def _needs_compiler(facts: Facts) -> str | None:
    """Reason if there is no C++ compiler, which inductor needs for a processor."""
    import shutil

    if facts.cuda or any(shutil.which(name) for name in (facts.variables.get("CXX") or "g++", "clang++")):
        return None
    return "no C++ compiler is on the path"


COMPILE = Intervention(
    name="compile",
    title="torch.compile of the model",
    family="compile",
    framework="torch",
    answers=_ANSWERS,
    effort=_EFFORT,
    may_change=_MAY_CHANGE,
    code="model = torch.compile(model)",
    applies=_needs_compiler,
    apply=partial(_compile, None),
)
BLOCKS = Intervention(
    name="compile-blocks",
    title="torch.compile of each block of the model",
    family="compile",
    framework="torch",
    answers=(*_ANSWERS, "compile_time"),
    effort=_EFFORT,
    may_change=_MAY_CHANGE,
    code="for block in model.blocks:\n    block.compile()",
    applies=_needs_compiler,
    apply=_compile_blocks,
)
REDUCE_OVERHEAD = Intervention(
    name="compile-reduce-overhead",
    title="torch.compile with CUDA graphs",
    family="compile",
    framework="torch",
    answers=("launch_bound", "small_kernels", "host_bound"),
    effort=_EFFORT,
    may_change=f"{_MAY_CHANGE} Outputs lie in memory that the next call uses again.",
    code='model = torch.compile(model, mode="reduce-overhead")',
    applies=needs_cuda,
    apply=partial(_compile, "reduce-overhead"),
)
MAX_AUTOTUNE = Intervention(
    name="compile-max-autotune",
    title="torch.compile with measured kernels",
    family="compile",
    framework="torch",
    answers=("unfused_ops", "launch_bound", "unfused_attention"),
    effort=_LONG_EFFORT,
    may_change=f"{_MAY_CHANGE} Matrix products may come from Triton.",
    code='model = torch.compile(model, mode="max-autotune")',
    applies=needs_cuda,
    apply=partial(_compile, "max-autotune"),
)
CUDA_GRAPHS = Intervention(
    name="cuda-graphs",
    title="the model replayed from CUDA graphs",
    family="compile",
    framework="torch",
    answers=("launch_bound", "small_kernels", "host_bound"),
    may_change="Python code of the model runs once; inputs of another shape and reads by the host are errors.",
    code="model = torch.cuda.make_graphed_callables(model, (sample_batch,))",
    applies=needs_cuda,
    apply=_graphs,
)
