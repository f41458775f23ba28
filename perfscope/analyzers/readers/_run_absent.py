"""Why a run of ours holds no step that plans can be made for, and what to record to have one."""

from __future__ import annotations

from perfscope.profiler.options import TOOLS
from perfscope.profiler.run import Process, Run

_STEPS = "steps are found from the optimizer, or marked with perfscope.step()"


def why_no_step(run: Run, process: Process) -> str:
    """What the run was asked to record, or what stopped it; and the command that records the step's ops.

    For a process whose recording has neither an op graph (PyTorch) nor a compiled program (JAX).
    """
    if any(capture.tool.startswith("jax") for capture in process.captures):
        return _of_jax(process)
    asked = _asked(run)
    if asked is not None:
        return asked
    structure = next((one for one in process.captures if one.tool == "op_graph"), None)
    if structure is None:
        return (
            "the run has no structure pass, which records the op graph of a step: record it with perfscope run at its "
            f"default level, and let it take a few steps ({_STEPS})"
        )
    why = structure.reason or f"it is {structure.state}"
    if "ended" in why:
        return (
            f"the run has no op graph of a step: {why}. It took {process.steps_seen} steps: let it take more, or "
            "record with --warmup 1 --steps 1:2"
        )
    if "torch.compile" in why:
        return f"the run has no op graph of a step: {why}. Record it without torch.compile"
    return f"the run has no op graph of a step: the structure pass says: {why}"


def _asked(run: Run) -> str | None:
    """The options of ``perfscope run`` that leave the structure pass out, if some did."""
    options = run.options
    without = []
    if options.get("times_only"):
        return "the run took nothing but the times of steps: record it with perfscope run"
    if options.get("capture") in TOOLS:
        without.append(f"--capture {options['capture']}")
    if options.get("whole"):
        without.append("--whole")
    if options.get("level") == "light":
        without.append("--level light")
    if not without:
        return None
    said = " and ".join(without)
    return (
        f"the run was recorded with {said}, which takes no op graph of a step: record it with perfscope run without "
        f"{'it' if len(without) == 1 else 'them'}" + (f" ({_STEPS})" if options.get("whole") else "")
    )


def _of_jax(process: Process) -> str:
    programs = next((one for one in process.captures if one.tool == "jax_hlo"), None)
    if programs is not None and programs.artifact is None and programs.reason:
        return (
            f"the run has no compiled XLA program: {programs.reason}. Put the step under jax.jit, and keep "
            "the function until the program ends"
        )
    return (
        "no compiled XLA program ran in the traced steps of this JAX run: put the step under jax.jit, or record steps "
        "that call it (--steps A:B)"
    )
