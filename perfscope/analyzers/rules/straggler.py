"""Devices wait for one another at collectives, because one of them comes late.

Why it costs:
    A collective begins when its last device arrives. What the others wait is lost on each of them, and
    the whole step is as slow as the slowest device before every collective. A device that is always the
    last one has more work than the others: a larger shard, padding, an uneven split of layers or experts.

How it is found:
    XLA's CPU backend records the meeting of the devices' threads at each collective: every arrival, the
    last one, and the work. Per collective that gives the skew (last arrival minus first), the wait of
    each device and who was last. The finding names the device that causes the largest part of all
    waiting. The times are measured, but of threads that share the cores of one machine: they say who is
    late to what, not what it would cost on accelerators, so no saving is named. Recordings of
    accelerators show a rank's own kernels and not who arrived when: there the rule abstains.

Fix:
    If one device causes most of it, compare what it does before that collective: shard sizes that do
    not divide evenly, padding, uneven experts or layers, work on process 0 only. If all are late in
    turn, the devices take turns on too few cores: use no more virtual devices than cores
    (`--xla_force_host_platform_device_count`) before reading anything into it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from perfscope.analyzers.facts.hlo_program import where_of
from perfscope.analyzers.facts.rendezvous import CollectiveSkew, Skew, collective_skew
from perfscope.analyzers.facts.step_windows import whole_ns
from perfscope.analyzers.finding import NOWHERE, AbstainError, Cell, Finding, Where
from perfscope.analyzers.trace import RECORDED, Trace
from perfscope.analyzers.units import format_ns, format_share

NEEDS = ()

WAIT_SHARE = 0.05
"""Of the steps' time, as mean wait of a device. Below a twentieth the spread of a thread's scheduling explains it."""

MIN_EXECUTIONS = 3
"""Of a collective, in all. The first one of a program also waits for its compilation on other threads."""

CAUSE_SHARE = 0.5
"""Of the way from an even share of the waiting to all of it: a device that causes more is the straggler."""

ROWS = 20


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding if the devices wait long for one another, with a row a collective."""
    skew = trace.fact(collective_skew)
    if not skew.meetings and "hlo" not in trace.recorded:
        raise AbstainError(f"not recorded: {RECORDED['hlo']}")
    if not skew.meetings:
        raise AbstainError(
            "who arrives when at a collective was not recorded (XLA's CPU backend with several devices records it)"
        )
    judged = [one for one in skew.collectives if one.executions >= MIN_EXECUTIONS]
    devices = {device for one in judged for device in one.devices}
    if not devices:
        raise AbstainError(f"no collective ran {MIN_EXECUTIONS} times: record more steps")
    mean = sum(one.wait_ns for one in judged) // len(devices)
    whole = whole_ns(trace)
    if mean >= WAIT_SHARE * whole > 0:
        yield _finding(trace, skew, judged, len(devices), mean)


def _finding(trace: Trace, skew: Skew, judged: list[CollectiveSkew], devices: int, mean: int) -> Finding:
    names = {(one.program_id, one.module, one.instruction) for one in judged}
    caused: dict[int, int] = defaultdict(int)
    for meeting in skew.meetings:
        if (meeting.program_id, meeting.module, meeting.instruction) in names:
            caused[meeting.straggler] += sum(meeting.waits_ns)
    late = max(sorted(caused), key=lambda device: caused[device])
    share = caused[late] / max(1, sum(caused.values()))
    one_is_late = share >= 1 / devices + CAUSE_SHARE * (1 - 1 / devices)
    verdict = (
        f"device {late} causes {share:.0%} of it"
        if one_is_late
        else f"all are late in turn (device {late} most, {share:.0%} of it)"
    )
    return Finding(
        subject="one device comes late" if one_is_late else "devices come unevenly",
        title=f"{devices} devices wait {format_ns(mean)} each ({format_share(mean, whole_ns(trace))}) for one another "
        f"at {len(judged):,} collectives; {verdict}",
        severity="medium" if one_is_late else "low",
        basis="measured",
        where=_where(trace, judged[0]),
        evidence=tuple(_row(one) for one in judged[:ROWS]),
        advice=(
            f"Compare what device {late} does before `{judged[0].instruction}` with the others: shard sizes, padding, "
            "uneven experts or layers, work on process 0 only."
            if one_is_late
            else "Virtual devices that outnumber the cores take turns: set "
            "XLA_FLAGS=--xla_force_host_platform_device_count to the number of cores, and look again."
        ),
    )


def _row(one: CollectiveSkew) -> dict[str, Cell]:
    return {
        "collective": one.instruction,
        "operation": one.operation,
        "program": one.module,
        "executions": one.executions,
        "wait_ns": one.wait_ns,
        "skew_ns": one.skew_ns,
        "largest_skew_ns": one.largest_skew_ns,
        "work_ns": one.work_ns,
        "straggler": one.straggler,
        "straggler_last": f"{one.straggler_share:.0%}",
    }


def _where(trace: Trace, one: CollectiveSkew) -> Where:
    """The line that the program's metadata names for the collective."""
    for module in trace.hlo:
        if (module.name, module.program_id) != (one.module, one.program_id):
            continue
        for computation in module.computations.values():
            if one.instruction in computation.by_name:
                return where_of(computation.by_name[one.instruction])
    return NOWHERE
