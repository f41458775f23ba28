"""`torch.compile` of the models of a program, in the modes it has."""

from __future__ import annotations

from functools import partial
from typing import Any

from perfscope.profiler.interventions.base import Application, Facts, Intervention, needs_cuda
from perfscope.profiler.interventions.root_modules import RootModules


def _compile(mode: str | None, application: Application) -> None:
    """The forward function of each model is compiled after the first step; hooks of the model stay outside."""

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
    """Each of several modules of one class that stand in a list is compiled alone: the code of one serves all."""

    def found(modules: list[Any]) -> None:
        import torch

        for root in modules:
            for holder in list(root.modules()):
                if isinstance(holder, torch.nn.ModuleList | torch.nn.Sequential):
                    for kind, blocks in _repeated(holder).items():
                        for block in blocks:
                            block.forward = torch.compile(block.forward)
                        application.changed(f"{len(blocks)} {kind} of {type(root).__name__} are compiled one by one")

    RootModules(found=found)


def _repeated(holder: Any) -> dict[str, list[Any]]:
    """Class -> its members of ``holder`` with modules of their own, where there are several."""
    kinds: dict[str, list[Any]] = {}
    for block in holder:
        if any(True for _ in block.children()):
            kinds.setdefault(type(block).__name__, []).append(block)
    return {kind: blocks for kind, blocks in kinds.items() if len(blocks) > 1}


def _needs_compiler(facts: Facts) -> str | None:
    """Inductor compiles C++ for a processor."""
    import shutil

    if facts.cuda or any(shutil.which(name) for name in (facts.variables.get("CXX") or "g++", "clang++")):
        return None
    return "no C++ compiler is on the path"


_MAY_CHANGE = (
    "Fused kernels keep intermediate values in registers and sum in another order; random numbers of dropout differ."
)
_ANSWERS = ("unfused_ops", "launch_bound", "small_kernels", "host_bound", "unfused_attention")

COMPILE = Intervention(
    name="compile",
    title="torch.compile of the model",
    family="compile",
    framework="torch",
    answers=_ANSWERS,
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
    may_change=f"{_MAY_CHANGE} Matrix products may come from Triton.",
    code='model = torch.compile(model, mode="max-autotune")',
    applies=needs_cuda,
    apply=partial(_compile, "max-autotune"),
)
