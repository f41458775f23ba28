"""Evaluations in the loop take their time from training.

Example:
    Before::

        model.eval()
        for image, label in DataLoader(held_out, batch_size=1):
            correct += (model(image).argmax() == label).item()
        model.train()

    After::

        model.eval()
        with torch.no_grad():
            for images, labels in DataLoader(held_out, batch_size=512, num_workers=4):
                correct += (model(images).argmax(1) == labels).sum()
        model.train()

Why it costs: no training step runs during an evaluation. Its loop is often the slowest part of the program: batches
smaller than memory allows, a value read from the device for each sample, an autograd graph without a backward pass,
samples decoded again in each evaluation.

How it is found: `perfscope run` notes the time from `model.eval()` to `model.train()`, if no step ends in between, and
the stacks that it samples show the lines. In programs without these calls, an evaluation is a function of the program
with such a name (`evaluate`, `validate`, `validation_step`, `test`, `estimate_loss`), by its share of the sampled
stacks of steps without a profiler; compiling is not counted, and neither are waits for the device if the host runs
ahead of its steps, because they may be for those. Where a JAX program only launches its evaluation and does not wait
for it, the time of the evaluation's programs on the device counts (jitted functions with such a name, or called in such
a function): that of their runs in the traced steps, times their calls in the whole run. If no traced step evaluates,
that time is unknown, and more of them are needed (`--steps`). The cost is the time of all evaluations between the first
and the last step without a profiler, without saves in them, divided by all steps, if it is at least a tenth. All of it
is an upper bound: some evaluation is wanted. If less is left on a machine where the host waited for a core half of the
steps or more, the rule abstains.

Fix: evaluate less often, on fewer batches, or in another process that reads checkpoints. Make one evaluation cheaper:
`torch.no_grad()` (`needless_grad`), batches larger than those of training, sums that stay on the device until the end
of the evaluation, and loader workers that are kept (`persistent_workers=True`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from perfscope.analyzers.time.fixes import situation
from perfscope.analyzers.time.rules.checkpoint_stall import examined as examined
from perfscope.analyzers.time.samples import SampledLine, device_waits, sampled_lines
from perfscope.analyzers.time.side_work import SideCall, SideWork, side_work
from perfscope.analyzers.time.storage import TOO_BUSY, too_busy
from perfscope.model.finding import MOST_ROWS, AbstainError, Cell, Finding, fit_title
from perfscope.model.severity import severity_of
from perfscope.model.trace import Trace
from perfscope.model.units import format_ns

LEAST_SHARE = 0.1
"""Smallest share of the time: evaluations that take less are usually wanted as they are."""

READS_SHARE = 0.2
"""Share of an evaluation in calls that read a value from the device, from which its fix is to read less often."""

LEAST_SAMPLES = 5
"""Minimum number of samples for the line with most of the time."""


def check(trace: Trace) -> Iterator[Finding]:
    """Yield one finding for all evaluations in the loop."""
    found = trace.fact(side_work)
    if found is None:
        raise AbstainError("neither evaluations nor stacks of the run's steps were recorded", ("side_work",))
    calls = found.of("evaluation")
    total = sum(call.total_ns for call in calls)
    if calls and total >= LEAST_SHARE * found.whole_ns:
        yield _finding(trace, found, calls, total)
    elif calls and too_busy(trace):
        raise AbstainError(TOO_BUSY)


def _finding(trace: Trace, found: SideWork, calls: tuple[SideCall, ...], total: int) -> Finding:
    first, per_step = calls[0], round(total / found.steps)
    rows = np.array(sorted({row for call in calls for row in call.rows}), np.int64)
    lines = sampled_lines(trace, rows) if len(rows) >= LEAST_SAMPLES else ()
    name = (lines[0].site.function or lines[0].innermost) if lines else ""
    most = f", most in {name}" if name not in ("", "<module>") else ""
    builds = _builds_graphs(trace, lines)
    reads = len(rows) >= LEAST_SAMPLES and trace.fact(device_waits)[rows].mean() >= READS_SHARE
    single = _single_samples(trace)
    return Finding(
        subject="evaluations",
        title=fit_title(f"{_which(found, calls)}{most}", name),
        detail=_detail(calls, lines, builds=builds, single=single),
        severity=severity_of(total, found.whole_ns),
        basis="measured",
        advice=_advice(trace, builds=builds, single=single, reads=bool(reads)),
        cost_ns=total,
        cost_ns_per_step=per_step,
        untraced_ns_per_step=per_step,
        where=first.site.where(),
        evidence=tuple(_row(line, total / found.steps) for line in lines[:MOST_ROWS]),
    )


def _builds_graphs(trace: Trace, lines: tuple[SampledLine, ...]) -> bool:
    """Whether calls of the model in the evaluations build autograd graphs that no backward pass uses."""
    files = {(line.site.file, line.site.function) for line in lines}
    sites = {(line.site.file, line.site.line) for line in lines}
    return bool(files) and any(
        fact.name == "unused_graph" and (fact.file, fact.line) in sites for fact in trace.program_facts
    )


def _single_samples(trace: Trace) -> bool:
    """Whether one of the program's loaders makes batches of one sample, and another larger ones."""
    sizes = {loader.batch_size for loader in trace.loaders}
    return 1 in sizes and any(size is not None and size > 1 for size in sizes)


def _which(found: SideWork, calls: tuple[SideCall, ...]) -> str:
    if any(call.count is None or call.each_ns is None for call in calls):
        return "training waits for evaluations"
    count = sum(call.count or 0 for call in calls)
    each = format_ns(sum(call.total_ns for call in calls) / max(1, count))
    return f"training waits for {count:,} evaluation{'s' * (count != 1)} of {each} in {found.steps:,} steps"


def _detail(calls: tuple[SideCall, ...], lines: tuple[SampledLine, ...], *, builds: bool, single: bool) -> str:
    parts = [
        f"The host only launches {call.call}: its time is that of its traced runs on the device, times its "
        f"{call.program_calls:,} calls in the run."
        for call in calls if call.program_calls is not None
    ]  # fmt: skip
    if lines:
        shown = ", ".join(f"{line.site.where().label()} ({line.share:.0%})" for line in lines[:2])
        parts.append(f"Lines with most of the time: {shown}.")
    if builds:
        parts.append("The model is called with gradients enabled (`needless_grad`).")
    if single:
        parts.append("One of the program's loaders makes batches of one sample.")
    return " ".join(parts)


def _advice(trace: Trace, *, builds: bool, single: bool, reads: bool) -> str:
    jax = trace.fact(situation).framework == "jax"
    first = []
    if builds:
        first.append("Disable gradients around the evaluation (`torch.no_grad()`).")
    if single:
        first.append("Evaluate in larger batches than training: no gradients are kept.")
    if reads:
        first.append(
            "Sum the metrics in the jitted function, and read them once after the loop."
            if jax
            else "Sum the metrics on the device, and read them once after the loop."
        )
    return " ".join([*first, "Evaluate less often, on fewer batches, or in another process that reads checkpoints."])


def _row(line: SampledLine, per_step_ns: float) -> Mapping[str, Cell]:
    return {
        "host_was_in": line.innermost,
        "site": line.site.where().label(),
        "time_per_step_ns": round(line.share * per_step_ns),
        "share": round(line.share, 4),
        "samples": line.samples,
    }
