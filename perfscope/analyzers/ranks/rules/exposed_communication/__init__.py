"""Collectives run while the device computes nothing.

Example:
    Before::

        for batch in micro_batches:
            model(batch).sum().backward()       # reduces the gradients each time

    After::

        for number, batch in enumerate(micro_batches):
            with contextlib.nullcontext() if number == last else model.no_sync():
                model(batch).sum().backward()

Why it costs: communication and computation use different parts of a device and can run at the same time. A collective
that runs alone adds its whole time to the step.

How it is found: per device, the time of communication kernels that no compute kernel covers. It is exact, and divided
among the collectives without counting a moment twice. It is an upper bound of the saving by overlap, because there may
be too little independent work.

One rank alone does not show whether it transfers or waits for a slower rank: a collective kernel spins until the last
rank has arrived. With traces of several ranks their collectives are matched. The shortest duration is the transfer; the
rest of the other durations is waiting for the last rank. So the exposed time of each rank is divided exactly: waiting
for a late rank (by rank), waiting for several that came last together, the transfer, ambiguous time (a wait below the
accuracy of the ranks' clocks, or missing members of the group), and collectives that no other rank has. Waiting for a
late rank is the cost of `straggler` and is excluded here. The devices of one recording (XLA on GPUs) are compared in
the same way, but the cost includes all of their time. With several such processes, the ranks are the processes,
represented by the device with the most exposed time; its waits for other devices of its process are listed separately.

On a TPU the waits on the core and the overlapping transfers (`Async XLA Ops`) count, each moment once. XLA's CPU
backend is not judged: its devices share the cores of one host, so while one waits the others have the cores, and
nothing is idle; `straggler` shows whom they wait for. A program alone has no times: `blocking_collective` reports what
the device would wait for. In a planned PyTorch program of several processes (`perfscope compile --target h100x8`) it is
the modelled time in which the step waits for collectives and runs no kernel, at the low end of the range.

Fix: waiting: make the late rank faster (`straggler`); no other fix shortens that. The transfer: start collectives
earlier and wait for them later. DDP: `bucket_cap_mb`, `static_graph=True`, gradient accumulation under `no_sync()`.
FSDP: `fully_shard` per block, `set_modules_to_forward_prefetch`, `reshard_after_forward=False` if memory allows. Tensor
parallelism: its asynchronous form, or sequence parallelism. Everywhere: lower precision on the wire, fewer and larger
messages, and `async_op=True` with `wait()` where the result is used. In JAX the compiler schedules them:
`blocking_collective` explains why one is exposed, and `XLA_FLAGS="--xla_gpu_enable_latency_hiding_scheduler=true"`
overlaps more of them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from perfscope.analyzers.ranks.devices import ProcessSet, device_set, is_process, process_sets
from perfscope.analyzers.ranks.job import Job
from perfscope.analyzers.ranks.launched import launched_operations
from perfscope.analyzers.ranks.matching import align
from perfscope.analyzers.ranks.rules.exposed_communication.ranks import Side, by_kind, exposed_finding
from perfscope.analyzers.ranks.sets import RankSet, comparable
from perfscope.analyzers.ranks.waits import Wait, shares_of, waits_of
from perfscope.analyzers.spans import rows_by_device, worst_spans
from perfscope.analyzers.time import (
    PHASES,
    StepAccount,
    account_windows,
    communication_in_steps,
    framework,
    reduced_too_often,
    situation,
    step_accounts,
    step_windows,
    timed_cost,
    work_phases,
)
from perfscope.model.finding import MOST_ROWS, NOWHERE, AbstainError, Cell, Finding, Removed, Scope, Where
from perfscope.model.intervals import covered, union
from perfscope.model.trace import MISSING, Trace
from perfscope.model.units import format_ns, format_share

if TYPE_CHECKING:
    from perfscope.analyzers.hlo import Instruction

EXPOSED_SHARE = 0.05
"""Exposed communication as a share of the step from which it is reported. The first and last collective of a step
remain exposed even if all others are hidden.
"""

PART_SHARE = 0.01
"""Smallest share of the step for a separate finding of one kind of collective."""

REPLACES = True
"""Whether the comparison of ranks replaces the findings of each rank."""


_KERNEL_OPERATION = re.compile(r"(?:nccl|rccl)\w*?Kernel_?([A-Z][A-Za-z]+)")
_INSTRUCTION = re.compile(
    r"^(?:async-)?(all-reduce|all-gather|all-to-all|ragged-all-to-all|reduce-scatter|collective-permute|"
    r"collective-broadcast|send|recv)(?:-start|-done|-update)?(?:[.\-_]|$)"
)
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")

MANY_OPERATIONS = frozenset({"send_recv", "send", "recv", "communication"})
"""Names of kernels that several operations use: NCCL's all-to-all consists of sends and receives."""

ADVICE = {
    "allreduce": "Let DDP overlap it with the backward pass (`bucket_cap_mb`, `static_graph=True`). Use `no_sync()` "
    "while accumulating. With tensor parallelism use its asynchronous form, or sequence parallelism.",
    "allgather": "Prefetch the next FSDP block (`set_modules_to_forward_prefetch`). Or keep parameters between "
    "forward and backward (`reshard_after_forward=False`) where memory allows.",
    "reducescatter": "Apply FSDP per block, so that each reduction overlaps with the backward pass of the next.",
    "alltoall": "Overlap it with other work (experts, dense layers): split the batch in two halves and pipeline them. "
    "Or send lower precision.",
    "sendrecv": "Use more microbatches, an interleaved schedule, or local work during the sends and receives.",
}
"""Operation without underscores -> advice; sources write `all_reduce`, `allreduce`, `_allgather_base`."""

OF_LAYOUTS = (
    "Leave activations divided where the next layer divides them again: the same `output_layouts` and `input_layouts` "
    "(the defaults of `ColwiseParallel` before `RowwiseParallel`)."
)
"""All-gathers that layouts of tensors request, as in tensor parallelism."""

FORWARD_SHARE = 0.2
"""Share of all-reduces in the forward pass from which they belong to tensor parallelism, which has as many there as in
the backward pass. Data parallelism has almost no all-reduce there (only buffers of the model)."""

LEAST_LAYERS = 3
"""Smallest number of all-reduces per forward pass for tensor parallelism; one or two may reduce a loss or a metric."""

OF_LAYERS = (
    "Overlap the all-reduces of tensor parallelism with neighbouring matrix products: sequence parallelism and its "
    "asynchronous form. In Megatron-LM: `--tp-comm-overlap`; in torch: `torch._inductor.config._micro_pipeline_tp`. Or "
    "split layers over fewer devices, within one NVLink domain."
)
OF_SERVED_LAYERS = (
    "Split the layers over fewer devices (`tensor_parallel_size`), and serve more replicas. Or keep them within one "
    "NVLink domain, where servers have one-shot all-reduces for small messages."
)

XLA_ADVICE = (
    'Let XLA overlap it: XLA_FLAGS="--xla_gpu_enable_latency_hiding_scheduler=true" on a GPU. Give it something to '
    "move ({work}); blocking_collective explains its waits."
)

ALONE = " A single rank cannot separate transfer from waiting for a slower rank: compare the ranks."

LONG_SHARE = 0.25
"""Share of a step from which a single collective on one rank more likely waits for a late rank than transfers."""
FIRST_COMPARE = (
    "Give the traces of all ranks to one `perfscope analyze`, to see whether this rank waits for a slower one. "
)

OTHER_ADVICE = "Start it earlier (`async_op=True`) and call `wait()` where the result is used."


def examined(trace: Trace) -> Scope:
    """Count the communication kernels, or the collectives of a planned step."""
    if trace.torch_plans:
        planned = [held.plan.processes for held in trace.torch_plans]
        return Scope(
            sum(len(processes.eager or ()) for processes in planned if processes is not None), "collectives in the plan"
        )
    return Scope(int(trace.rows["kernels"]["communication"].sum()), "collectives on a device in the recording")


def check_plan(trace: Trace) -> Iterable[Finding]:
    """Yield one finding per kind of collective that a planned step waits for."""
    from perfscope.analyzers.ranks.rules.exposed_communication.plan import planned_exposure

    return planned_exposure(
        trace,
        least=EXPOSED_SHARE,
        part=PART_SHARE,
        advice=_planned_advice,
    )


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding per kind of collective, for the device with the most exposed communication."""
    if "device_work" not in trace.recorded:
        return _without_device(trace)
    device = _worst(trace)
    if device is None:
        return []
    result = device_set(trace) if len(trace.rows["hlo_ops"]) else None
    if result is None:
        return _findings(trace, device)
    waits = waits_of(result.collectives, align(result.collectives, result.devices), all_here=True)
    sides = _sides(trace, device, device.ordinal, waits.get(device.ordinal, {}))
    here = result.world_size is None or len(result.devices) >= result.world_size
    unclear = "no longer than their ends differ" if here else "not all devices are here"
    return [
        exposed_finding([side], member="device", elsewhere=False, unclear=unclear)
        if side.matched  # for a group with devices of other processes, this recording has only its own devices
        else side.finding
        for side in sides
    ]


def compare(traces: Sequence[Trace]) -> Iterable[Finding]:
    """Yield one finding per kind of collective of each job, and the findings of traces outside of the jobs."""
    try:
        sets = comparable(traces)
    except AbstainError:  # nothing to compare with: each rank's own finding stays, with its caveat
        sets = ()
    processes = [process_set for process_set in process_sets(traces) if process_set.ranks.matching.matched]
    inside: set[int] = set()
    kinds: set[str] = set()
    judged = [(rank_set.job, _of_ranks(rank_set)) for rank_set in sets] + [
        (process.ranks.job, _of_processes(process)) for process in processes
    ]
    for job, findings in judged:
        inside.update(id(member.trace) for member in job.members)
        for finding in findings:
            kinds.add(finding.subject)
            yield finding
    for trace in traces if kinds else ():
        device = _worst(trace) if id(trace) not in inside else None
        if device is not None:
            rank = trace.source.rank
            yield from (
                replace(finding, ranks=() if rank is None else (rank,))
                for finding in _findings(trace, device)
                if finding.subject in kinds
            )


def _of_job(job: Job, waits: Mapping[int, Mapping[int, Wait]], unclear: str, *, processes: bool) -> Iterator[Finding]:
    """Yield the findings of a job; each rank is represented by its device with the most exposed communication."""
    sides: list[Side] = []
    for member in job.members:
        device = _worst(member.trace)
        if device is not None:
            sides += _sides(member.trace, device, member.rank, waits.get(member.rank, {}))
    if job.missing:
        unclear += f", and {'processes' if processes else 'ranks'} are missing"
    for found in by_kind(sides).values():
        yield exposed_finding(found, member="rank", elsewhere=True, unclear=unclear, processes=processes)


def _of_ranks(ranks: RankSet) -> Iterator[Finding]:
    waits = waits_of(ranks.matching.matched, ranks.clocks, all_here=not ranks.job.missing)
    return _of_job(ranks.job, waits, f"clocks agree to {format_ns(ranks.clocks.worst_ns)}", processes=False)


def _of_processes(process_set: ProcessSet) -> Iterator[Finding]:
    clocks = align(process_set.devices.collectives, process_set.devices.devices)
    waits = waits_of(process_set.devices.collectives, clocks, all_here=True, rank_at=process_set.rank_at)
    unclear = f"ends on the devices agree to {format_ns(clocks.worst_ns)}"
    return _of_job(process_set.ranks.job, waits, unclear, processes=True)


def _sides(trace: Trace, device: StepAccount, member: int, waits: Mapping[int, Wait]) -> Iterator[Side]:
    """Yield each kind of collective on the device, with its parts."""
    members = _by_kind(trace, device, _collective_of(trace))
    for finding in _findings(trace, device, compared=True):
        kind = finding.subject
        yield Side(
            finding=finding,
            advice=finding.advice,
            shares=shares_of(trace, member, device.device, members[kind], waits),
            whole_ns=device.whole_ns,
            steps=trace.fact(step_windows).count,
        )


def _worst(trace: Trace) -> StepAccount | None:
    """Return the device with the most exposed communication, if that is long enough."""
    accounts = [
        account
        for account in trace.fact(step_accounts)
        if account.total_ns["exposed_communication"] >= EXPOSED_SHARE * account.whole_ns > 0
    ]
    return max(accounts, key=lambda account: account.total_ns["exposed_communication"], default=None)


def _without_device(trace: Trace) -> list[Finding]:
    if trace.recorded == {"hlo"}:
        raise AbstainError("a compiled program has no times; blocking_collective lists what a device would wait for")
    if (len(trace.rows["collectives"]) and len(trace.rows["hlo_ops"])) or is_process(trace):
        raise AbstainError(
            "XLA's CPU backend: its devices share the cores of one host, so while one waits for a collective, "
            "others compute on the same cores and nothing is idle; record on the accelerators to judge"
        )
    if len(trace.rows["collectives"]):
        raise AbstainError(
            "the collectives ran on the host (gloo): the recording does not show when the program waited for them"
        )
    if "host_ops" not in trace.recorded:
        raise AbstainError("neither device work nor host ops were recorded", ("host_ops",))
    return []


def _findings(trace: Trace, device: StepAccount, *, compared: bool = False) -> Iterator[Finding]:
    """Yield one finding per kind of collective on the device. ``compared``: its waits for other ranks are known."""
    from perfscope.analyzers.hlo import where_of
    from perfscope.analyzers.programs import communication_instructions

    kernels, exposed = trace.rows["kernels"], trace.fact(communication_in_steps)
    named = _collective_of(trace)
    for kind, members in sorted(_by_kind(trace, device, named).items()):
        cost = int(exposed[members].sum())
        if cost < PART_SHARE * device.whole_ns:
            continue
        total = int((kernels["end_ns"] - kernels["start_ns"])[members].sum())
        worst = max(members, key=lambda row: int(exposed[row]))
        alone = trace.source.world_size != 1
        instruction = trace.fact(communication_instructions).get(worst)
        line = NOWHERE if instruction is None else where_of(instruction)
        yield Finding(
            subject=kind,
            title=f"exposed {kind}: {len(members):,} kernel{'' if len(members) == 1 else 's'}",
            detail=f"It runs while nothing computes: {format_share(cost, total)} of the time of its kernels."
            + (ALONE if alone else ""),
            **timed_cost(trace, cost, device.whole_ns),
            covers_ns={"exposed_communication": cost},
            advice=(FIRST_COMPARE if alone and not compared and _waits(trace, device, members) else "")
            + (_advice(trace, kind, members) if instruction is None else _xla_advice(instruction)),
            where=Where(
                file=line.file,
                line=line.line,
                kernel=trace.text(int(kernels["name"][worst])).split("(")[0] if line.file is None else None,
            ),
            evidence=_evidence(trace, members, exposed, named),
            spans=worst_spans(kernels["start_ns"][members], kernels["end_ns"][members], exposed[members]),
            removes=(Removed(table="kernels", rows=np.array(members, np.int64)),),
        )


def _waits(trace: Trace, device: StepAccount, members: list[int]) -> bool:
    """Whether one collective is so long that it more likely waits for a late rank than transfers."""
    kernels = trace.rows["kernels"]
    longest = int((kernels["end_ns"] - kernels["start_ns"])[members].max())
    return longest >= LONG_SHARE * device.whole_ns / max(1, len(device.numbers))


def _by_kind(trace: Trace, device: StepAccount, named: dict[int, int]) -> dict[str, list[int]]:
    """Map operation to rows of ``kernels`` that ran in the steps."""
    kernels = trace.rows["kernels"]
    kinds: dict[str, list[int]] = defaultdict(list)
    windows = trace.fact(account_windows)
    here = trace.fact(rows_by_device)["kernels"][device.device]
    mine = here[kernels["communication"][here]]
    inside = covered(union(windows.starts, windows.ends), kernels["start_ns"][mine], kernels["end_ns"][mine]) > 0
    for row in mine[inside].tolist():
        kinds[_operation(trace, row, named)].append(row)
    return kinds


def _evidence(
    trace: Trace, members: list[int], exposed: np.ndarray, named: dict[int, int]
) -> tuple[Mapping[str, Cell], ...]:
    """Return the exposed time by kernel, group and message size."""
    from perfscope.analyzers.programs import communication_names

    kernels, collectives = trace.rows["kernels"], trace.rows["collectives"]
    instructions = trace.fact(communication_names)
    groups: dict[tuple[str, str, int | None, int | None, str], list[int]] = defaultdict(list)
    for row in members:
        collective = named.get(row)
        group, size, elements = "", None, None
        if collective is not None:
            group = trace.text(int(collectives["group"][collective]))
            size = _known(collectives["group_size"][collective])
            elements = _known(collectives["elements_in"][collective])
        groups[trace.text(int(kernels["name"][row])), group, size, elements, instructions.get(row, "")].append(row)
    duration = kernels["end_ns"] - kernels["start_ns"]
    arrays = {key: np.array(rows, np.int64) for key, rows in groups.items()}
    table: list[Mapping[str, Cell]] = [
        {
            "kernel": name,
            "instruction": instruction or None,
            "group": group or None,
            "ranks": size,
            "elements_in": elements,
            "kernels": len(rows),
            "exposed_ns": int(exposed[rows].sum()),
            "duration_ns": int(duration[rows].sum()),
            "shortest_ns": int(duration[rows].min()),
            "longest_ns": int(duration[rows].max()),
        }
        for (name, group, size, elements, instruction), rows in arrays.items()
    ]
    table.sort(key=lambda row: -int(row["exposed_ns"] or 0))
    return tuple(table[:MOST_ROWS])


def _collective_of(trace: Trace) -> dict[int, int]:
    """Map rows of ``kernels`` to rows of ``collectives``."""
    rows = trace.rows["collectives"]["kernel"].tolist()
    return {kernel: row for row, kernel in enumerate(rows) if kernel != MISSING}


def _operation(trace: Trace, kernel: int, named: dict[int, int]) -> str:
    """Return the operation, from the instruction if possible: NCCL kernels send and receive for several operations."""
    from perfscope.analyzers.programs import communication_names

    instruction = trace.fact(communication_names).get(kernel)
    if instruction is not None and (match := _INSTRUCTION.match(instruction)) is not None:
        return match[1].replace("-", "_")
    collective = named.get(kernel)
    name = "" if collective is None else trace.text(int(trace.rows["collectives"]["name"][collective]))
    if name in ("", "unknown"):
        name = operation_of_kernel(trace.text(int(trace.rows["kernels"]["name"][kernel])))
    return trace.fact(launched_operations).get(kernel, name) if name in MANY_OPERATIONS else name


def operation_of_kernel(name: str) -> str:
    """Return ``all_reduce`` for ``ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)``.

    ``communication`` without an operation.
    """
    match = _KERNEL_OPERATION.search(name)
    return "communication" if match is None or match[1] == "Generic" else _CAMEL.sub("_", match[1]).lower()


def _advice(trace: Trace, kind: str, members: list[int]) -> str:
    if kind == "all_reduce" and (often := reduced_too_often(trace)):
        return often
    if kind == "all_reduce" and framework(trace) != "jax" and (inside := _in_forward(trace, members)):
        return inside
    if framework(trace) == "jax":  # without its compiled program
        return XLA_ADVICE.format(work="two half batches")
    spelled = kind.replace("_", "").lower()
    return next((text for operation, text in ADVICE.items() if operation in spelled), OTHER_ADVICE)


def _planned_advice(kind: str, by: str) -> str:
    """Return the advice about collectives of a plan, which states who requested them."""
    if kind == "all-gather" and by == "DTensor":
        return OF_LAYOUTS
    return ADVICE.get("sendrecv" if kind in ("send", "recv") else kind.replace("-", ""), OTHER_ADVICE)


def _in_forward(trace: Trace, members: list[int]) -> str:
    """Advice for all-reduces of the forward pass, which reduce activations and no gradients; ``''`` for others."""
    phases = trace.fact(work_phases)["kernels"][members]
    steps = max(1, trace.fact(step_windows).count)
    in_forward = int((phases == PHASES.index("forward")).sum())
    if in_forward < FORWARD_SHARE * len(members) or in_forward < LEAST_LAYERS * steps:
        return ""
    trains = trace.fact(situation).phase == "training"
    return OF_LAYERS if trains else OF_SERVED_LAYERS


def _xla_advice(instruction: Instruction) -> str:
    in_loop = "/while/" in instruction.op_name
    return XLA_ADVICE.format(work="jax.lax.scan(..., unroll=2), or two half batches" if in_loop else "two half batches")


def _known(value: int) -> int | None:
    return None if value == MISSING else int(value)
