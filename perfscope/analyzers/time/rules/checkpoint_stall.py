"""The loop waits while checkpoints are saved, or its steps are slower while they are stored.

Example:
    Before::

        if number % 100 == 0:
            torch.save(model.state_dict(), path)

    After::

        if number % 100 == 0:
            saved = torch.distributed.checkpoint.async_save(model.state_dict(), checkpoint_id=path)

Why it costs: a synchronous save copies the state to the host, serialises it and writes it, and no step runs meanwhile.
An asynchronous save returns after a copy; its threads then share the interpreter's lock, the cores, the memory's
bandwidth and the disk with the steps. The median step does not include saves, and the few traced steps rarely do.

How it is found: `perfscope run` notes begin, end, line and written bytes of each save by `torch.save`,
`torch.distributed.checkpoint`, Orbax, safetensors, NumPy, Flax, Equinox, Keras and `jax.experimental`, and waits for
asynchronous saves. Counted are those between the first and the last step without a profiler, without waits for a core
and, on an accelerator, without up to one step of waiting for work that was launched before. The cost per step is their
sum divided by all steps, so one save in a short recording counts for as many steps as were recorded. Where such calls
were not noted, the share of saving in the sampled stacks is used. Steps while an asynchronous save, or a save in
another thread, is stored are compared with the other steps. Saves that take less than a twentieth of the time are not
reported, or not judged if the host waited for a core half of the steps or more.

Fix: save less often, or asynchronously: `torch.distributed.checkpoint.async_save`, Orbax's `CheckpointManager` or
`AsyncCheckpointer`, without `wait_until_finished()` in the loop. If asynchronous saves slow the steps, store them in a
process (`async_checkpointer_type=AsyncCheckpointerType.PROCESS`), keep the staging buffers pinned between saves, and
save less often.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from perfscope.analyzers.time.account import step_accounts
from perfscope.analyzers.time.fixes import situation
from perfscope.analyzers.time.side_work import Contention, SideCall, SideWork, contention, side_work
from perfscope.analyzers.time.storage import TOO_BUSY, too_busy
from perfscope.model.finding import AbstainError, Cell, Finding, Scope
from perfscope.model.frames.kinds import FrameKind
from perfscope.model.severity import HIGH_SHARE, severity_of
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes, format_ns

LEAST_SHARE = HIGH_SHARE
"""Smallest share of the time: teams schedule a task for a twentieth."""


def examined(trace: Trace) -> Scope:
    """Count the steps of the run."""
    found = trace.fact(side_work)
    return Scope(0 if found is None else found.steps, "steps of the run")


def check(trace: Trace) -> Iterator[Finding]:
    """Yield one finding per line that saves, and one for steps that background saves slow down."""
    found = trace.fact(side_work)
    if found is None:
        raise AbstainError("neither saves nor stacks of the run's steps were recorded", ("side_work",))
    saves = found.of("save", "wait")
    long = [call for call in saves if call.total_ns and call.total_ns >= LEAST_SHARE * found.whole_ns]
    yield from (_finding(trace, found, call) for call in long)
    slowed = trace.fact(contention)
    if slowed is not None and slowed.extra_ns >= LEAST_SHARE * found.whole_ns:
        yield _of_contention(found, slowed)
    elif saves and not long and too_busy(trace):
        raise AbstainError(TOO_BUSY)


def _finding(trace: Trace, found: SideWork, call: SideCall) -> Finding:
    per_step = round(call.total_ns / found.steps)
    return Finding(
        subject="waits for saves" if call.kind == "wait" else "saves",
        title=_title(found, call),
        detail=_detail(found, call),
        severity=severity_of(call.total_ns, found.whole_ns),
        basis="measured",
        advice=_fix(trace, call),
        cost_ns=call.total_ns,
        cost_ns_per_step=per_step,
        untraced_ns_per_step=per_step,
        where=call.site.where(),
        covers_ns={"saving": max((account.total_ns["saving"] for account in trace.fact(step_accounts)), default=0)},
        evidence=(_row(found, call),),
    )


def _title(found: SideWork, call: SideCall) -> str:
    if call.count is None or call.each_ns is None:
        return "the loop waits while checkpoints are saved"
    each, many = format_ns(call.each_ns), call.count != 1
    if call.kind == "wait":
        return f"the loop waits until saves are stored: {call.count:,} time{'s' * many}, {each} each"
    which = "asynchronous " if call.asynchronous else ""
    return f"the loop waits for {call.count:,} {which}save{'s' * many} of {each} in {found.steps:,} steps"


def _detail(found: SideWork, call: SideCall) -> str:
    if call.count is None or call.each_ns is None:
        return "By the share of saving in the sampled stacks: single saves were not noted."
    if call.kind == "wait":
        return "The steps could run meanwhile: a save only has to be stored before the next one begins."
    rate = ""
    if call.bytes is not None and not call.asynchronous:
        rate = f"A save writes {format_bytes(call.bytes)} at {call.bytes / max(1, call.each_ns):.2f} GB/s. "
    if call.asynchronous:
        rate = "This is the time until the call returns: it copies the state, and waits for the save before. "
    if call.count == 1:
        return f"{rate}The cost per step is that of one save in {found.steps:,} steps: saved less often, it is less."
    return f"{rate}Saved half as often, {format_ns(call.total_ns / found.steps / 2)} per step are left."


def _fix(trace: Trace, call: SideCall) -> str:
    if call.kind == "wait":
        return "Wait for the save before the next one or after the loop, not right after it began."
    if call.asynchronous:
        return (
            "Save less often. The copy of the state is left in the loop: keep its buffers pinned between saves, and "
            "let one save end before the next begins."
        )
    return trace.fact(situation).frame_fix(FrameKind.CHECKPOINT)


def _row(found: SideWork, call: SideCall) -> Mapping[str, Cell]:
    return {
        "call": call.call or None,
        "calls": call.count,
        "each_ns": call.each_ns,
        "time_per_step_ns": round(call.total_ns / found.steps),
        "saved_bytes": call.bytes,
        "samples": len(call.rows),
    }


def _of_contention(found: SideWork, slowed: Contention) -> Finding:
    per_step = round(slowed.extra_ns / found.steps)
    why = (
        "The steps wait for the interpreter's lock, which the thread that stores holds."
        if slowed.lock
        else "The threads that store share the cores, the memory's bandwidth and the disk with the steps."
    )
    return Finding(
        subject="steps while a save is stored",
        title=f"steps take {slowed.during_ns / slowed.usual_ns:.1f} times as long while a save is stored",
        detail=f"{format_ns(slowed.during_ns)} instead of {format_ns(slowed.usual_ns)} (medians) in {slowed.slowed:,} "
        f"of {found.steps:,} steps; storing takes {format_ns(slowed.storing_ns)}. {why}",
        severity=severity_of(slowed.extra_ns, found.whole_ns),
        basis="measured",
        advice="Store in a separate process (`async_checkpointer_type=AsyncCheckpointerType.PROCESS` of "
        "`torch.distributed.checkpoint`), with fewer threads, or less often."
        if slowed.call in ("async_save", "save")
        else "Store with fewer threads, or less often.",
        cost_ns=slowed.extra_ns,
        cost_ns_per_step=per_step,
        untraced_ns_per_step=per_step,
        where=slowed.site.where(),
        evidence=(
            {
                "saves": slowed.saves,
                "storing_ns": slowed.storing_ns,
                "saved_bytes": slowed.bytes,
                "slowed_steps": slowed.slowed,
                "step_ns": slowed.during_ns,
                "other_step_ns": slowed.usual_ns,
            },
        ),
    )
