"""Comparer of a model in PyTorch and in JAX, for `perfscope compare TORCH_RUN JAX_RUN`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from perfscope.commands.compare.outputs import Outputs
from perfscope.commands.options import STDOUT, screen, write_answers
from perfscope.model.errors import DONE, DataError, UsageError
from perfscope.plugins.port.differences import differences
from perfscope.plugins.port.document import Ledger, dump
from perfscope.plugins.port.jax_step import jax_step
from perfscope.plugins.port.ledger import ledger_of, place
from perfscope.plugins.port.pieces import Program
from perfscope.plugins.port.torch_step import torch_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.analyzers.readers import Loaded
    from perfscope.model.trace import Trace


def accepts(base: Loaded, head: Loaded) -> bool:
    """Whether one side is of PyTorch and the other of JAX."""
    return {_framework(base.traces), _framework(head.traces)} == {"torch", "jax"}


def compare(base: Loaded, head: Loaded, outputs: Outputs, notes: Sequence[str] = ()) -> int:
    """Write the ledger in every requested form, show it, and return the exit code."""
    check_outputs(outputs)
    return finish(ledger(base, head, notes), outputs)


def check_outputs(outputs: Outputs) -> None:
    """``UsageError`` for a form or a gate that a ledger does not have."""
    if outputs.junit is not None or outputs.github:
        raise UsageError("--junit and --github: two sides of different kinds are shown, and no change is judged")
    if any(gate != "none" for gate in outputs.fail_on):
        raise UsageError("--fail-on: two sides of different kinds are shown, and no change is judged")


def ledger(base: Loaded, head: Loaded, notes: Sequence[str] = ()) -> Ledger:
    """The ledger of two sides. ``DataError`` in one line: a side without a step or without layers."""
    made = place(_program(base), _program(head))
    result = ledger_of(made)
    return replace(result, differences=differences(made), notes=tuple(notes))


def _framework(traces: Sequence[Trace]) -> str | None:
    for trace in traces:
        if (
            trace.op_graph is not None
            or trace.torch_plans
            or "op_links" in trace.recorded
            or "autograd" in trace.recorded
        ):
            return "torch"
        if trace.hlo or "hlo" in trace.recorded or "compile_events" in trace.recorded:
            return "jax"
    return None


def _program(loaded: Loaded) -> Program:
    """The step of the first process; notes name the others."""
    if not loaded.traces:
        raise DataError("nothing to compare: a side holds no trace")
    trace = loaded.traces[0]
    framework = _framework([trace])
    made = torch_step(trace) if framework == "torch" else jax_step(trace) if framework == "jax" else None
    if made is None:
        need = {
            "torch": "no op graph, and no compiled region: record it with perfscope run, and not with --level light",
            "jax": "no compiled program: record it with perfscope run, or compile it with perfscope compile",
        }.get(framework or "", "neither a step of PyTorch with its op graph nor a compiled program of JAX")
        raise DataError(f"{trace.source.path}: {need}")
    others = len(loaded.traces) - 1
    more = (f"one of {others + 1} processes",) if others else ()
    return replace(made, notes=(*made.notes, *more))


def finish(made: Ledger, outputs: Outputs) -> int:
    """Write the ledger to files and show it; 0."""
    from perfscope.plugins.port.sections import render_html, render_markdown, render_text

    forms = (
        (outputs.json, lambda: dump(made).decode()),
        (outputs.markdown, lambda: render_markdown(made)),
        (outputs.html, lambda: render_html(made)),
    )
    write_answers(forms, quiet=outputs.quiet)
    if STDOUT not in [file for file, _ in forms]:
        import sys

        click.echo(render_text(made, **screen(sys.stdout), verbose=outputs.verbose), nl=False, color=True)
    return DONE


def files(*loaded: Loaded) -> list[Path]:
    """Files of both sides, which no output may replace."""
    return [Path(trace.source.path) for side in loaded for trace in side.traces]
