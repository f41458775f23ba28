"""Why a collective of a compiled program blocks, as far as the program shows it, and how to change that.

GPUs (openxla/xla, ``gpu_compiler.cc`` and the pass ``gpu-convert-async-collectives-to-sync``): every collective is
split, whatever its size. Kinds listed in ``--xla_gpu_disable_async_collectives`` are marked ``is_sync`` at once; after
scheduling, so is every pair with nothing between start and done. Since 2026 XLA turns such pairs into one op again,
which keeps the mark only if the flag set it.

TPUs: libtpu puts a collective into fusions, between whose begin and end others run, or splits it into start and done.
The conditions, by kind, were tested with libtpu 0.0.42.1. On v5e:2x4 with 64 KiB, 1 MiB and 16 MiB per device, next to
matrix products, elementwise work and nothing, inside and outside of loops: the size has no effect. All-gathers go into
fusions by default and all-reduces with two flags, both only next to matrix products; all-to-alls are split with a flag,
collective-permutes always, next to any work; reduce-scatters with no existing flag. On v6e:2x4 and v5p:2x2x2, with 1
MiB next to a product, all-reduces behave as on v5e; all-gathers need three flags, and all-to-alls stay one op with
their flag. Defaults of the flags: openxla.org/xla/flags_guidance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from perfscope.analyzers.hlo import (
    Collective,
    Instruction,
    hlo_costs,
    is_marked,
    measured_run_ns,
    module_index,
    program_device,
)
from perfscope.analyzers.predict import collective_range, factors_for
from perfscope.analyzers.programs.saving import Part, once_ns, wire_ns
from perfscope.model.trace import Trace

Cause = Literal[
    "turned off by a flag", "off unless flags say otherwise", "no flag divides it", "no matrix product near it",
    "independent work was left elsewhere", "no independent work near it",
]  # fmt: skip

_FUSED = "xla_tpu_enable_async_collective_fusion"
TPU_FLAGS: dict[str, tuple[str, ...]] = {
    "all-gather": ("xla_enable_async_all_gather", _FUSED, f"{_FUSED}_fuse_all_gather"),
    "all-reduce": ("xla_enable_async_all_reduce", f"{_FUSED}_fuse_all_reduce"),
    "all-to-all": ("xla_tpu_enable_async_all_to_all",),
}
"""Flags per kind, needed together: the first alone does not change an all-gather or all-reduce (tested, see above)."""

SPLIT_NEAR_PRODUCTS = ("all-gather", "all-reduce")
"""Kinds that a TPU's fusions divide only next to matrix products."""

_V5E = "TPU v5e"
"""Device on which all-gathers are divided by default, and all-to-alls with a flag (tested, see above)."""

_GPU_KINDS = {
    "all-gather": "ALLGATHER", "all-reduce": "ALLREDUCE", "all-to-all": "ALLTOALL",
    "collective-broadcast": "COLLECTIVEBROADCAST", "collective-permute": "COLLECTIVEPERMUTE",
    "ragged-all-to-all": "RAGGEDALLTOALL", "reduce-scatter": "REDUCESCATTER",
}  # fmt: skip


def cause_of(trace: Trace, collective: Collective, free: Sequence[Instruction]) -> Cause:
    """Return why a blocking collective blocks. ``free``: its ``independent_work``."""
    if collective.module.platform == "gpu":
        if is_marked(collective) and (collective.between or collective.blocks == "never split into start and done"):
            return "turned off by a flag"
    elif collective.blocks == "never split into start and done":
        device = program_device(trace)
        on_v5e = device is not None and device.device.name == _V5E
        if collective.kind not in TPU_FLAGS or (collective.kind == "all-to-all" and not on_v5e):
            return "no flag divides it"
        if free and collective.kind in SPLIT_NEAR_PRODUCTS and not _has_product(trace, collective, free):
            return "no matrix product near it"
        if free and not (collective.kind == "all-gather" and on_v5e):
            return "off unless flags say otherwise"
    return "independent work was left elsewhere" if free else "no independent work near it"


def remedy(collective: Collective, cause: Cause) -> str:
    """Return how to change it: tested flags, or how to write the program."""
    kind = collective.kind
    if cause == "turned off by a flag":
        return (
            f"Take {_GPU_KINDS[kind]} out of --xla_gpu_disable_async_collectives. It makes every {kind} block, "
            "whatever work could overlap it."
        )
    if cause == "off unless flags say otherwise":
        overlap = "matrix products run" if kind in SPLIT_NEAR_PRODUCTS else "other work run"
        return (
            f"Let {overlap} at the same time, with options of the compiler. Use {_options(kind)}. The TPU compiler "
            f"leaves {_an(kind)} one op by default, whatever its size."
        )
    if cause == "no flag divides it":
        chip = " on this chip" if kind in TPU_FLAGS else ""
        return (
            f"Send less, or put it where the device waits anyway: the TPU compiler leaves {_an(kind)} one op{chip}. "
            "No flag "
            "that changes it is known."
        )
    if cause == "no matrix product near it":
        flags = f", {'on v5e by default, else ' if kind == 'all-gather' else ''}with {_options(kind)}"
        next_turn = "of another half batch"
        if _in_scan(collective):
            next_turn = "of the next turn (jax.lax.scan(..., unroll=2)) or half batch"
        return (
            f"Put an independent matrix product there: {next_turn}. "
            f"The TPU compiler overlaps {_an(kind)} with matrix products only{flags}; none near it is independent."
        )
    if cause == "independent work was left elsewhere":
        if collective.module.platform == "gpu":
            return (
                'Set XLA_FLAGS="--xla_gpu_enable_latency_hiding_scheduler=true", with memory to spare for it. The '
                "scheduler then moves the independent work there; XLA found none in the order it chose."
            )
        return (
            "Make the independent work longer, or leave it more memory. The TPU compiler hides the exchange by default "
            "and left the independent work elsewhere."
        )
    if _in_scan(collective):
        return (
            "Make independent work: jax.lax.scan(..., unroll=2) overlaps the next turn with this one. Two half batches "
            "let one compute while the other communicates."
        )
    return "Make independent work: two half batches let one compute while the other communicates."


def _in_scan(collective: Collective) -> bool:
    """Whether it runs in a loop of the program."""
    return "/while/" in (collective.op.op_name or collective.start.op_name)


def _an(kind: str) -> str:
    return f"a {kind}" if kind[0] in "cr" else f"an {kind}"


def _options(kind: str) -> str:
    text = ", ".join(f'"{flag}": "true"' for flag in TPU_FLAGS[kind])
    return f"jax.jit(step, compiler_options={{{text}}})"


def _has_product(trace: Trace, collective: Collective, free: Sequence[Instruction]) -> bool:
    cost = trace.fact(hlo_costs)[module_index(trace, collective.module)]
    rows = (cost.by_name.get((collective.computation.name, work.name)) for work in free)
    return any(row is not None and bool(row.once.products) for row in rows)


# Time of collectives of compiled programs: how long a device waits for them, and how much of it could be hidden.
#
# Measured if a recording has them, as the time while nothing else ran on the device. Otherwise the shortest time of
# their bytes over all links of the device (`devices/roofline.py`); this is the rate within a node, because slower
# networks between nodes are unknown. For a program compiled for a TPU slice the links are known, and the low end of the
# estimate (`predict/collective_time.py`) is used, because devices that differ along one axis of the torus do not use
# the links of the others.


class CollectiveTime(Struct, frozen=True, kw_only=True):
    """One collective, in one run of its program, in ns. None: unknown."""

    transfer_ns: float | None
    """Shortest time of its bytes over the device's links."""
    hidden_ns: float
    """Part of it hidden by work between start and done, if it does not block."""
    measured_ns: float | None
    """Time while nothing else ran on the device: transfer, and waiting for the other devices."""

    @property
    def waits_ns(self) -> float | None:
        """Time that the device waits for it: measured, else the part of the transfer that is not hidden."""
        if self.measured_ns is not None:
            return self.measured_ns
        return None if self.transfer_ns is None else max(0.0, self.transfer_ns - self.hidden_ns)


def collective_time(trace: Trace, collective: Collective) -> CollectiveTime:
    """Return the time of a collective in one run of its program."""
    return CollectiveTime(
        transfer_ns=_transfer_ns(trace, collective),
        hidden_ns=collective.runs.times * _work_ns(trace, collective, collective.between)
        if collective.blocks is None
        else 0.0,
        measured_ns=measured_run_ns(trace, collective.module, names_of(collective)),
    )


def names_of(collective: Collective) -> tuple[str, ...]:
    """Return its possible names in a profile: the start, or the done that waits for it."""
    return tuple(dict.fromkeys((collective.start.name, collective.done.name)))


def waiting_part(trace: Trace, collective: Collective) -> Part:
    """Return the whole wait of the device for a collective, for ``price``: the saving if the collective is removed."""
    time = collective_time(trace, collective)
    return Part(module=collective.module, instructions=names_of(collective), modelled_ns=time.waits_ns, whole=True)


def overlap_parts(
    trace: Trace, members: Sequence[Collective], free: Mapping[int, tuple[Instruction, ...]]
) -> list[Part]:
    """Return the parts that independent work could hide, for ``price``: the shorter of the collectives and that work.

    ``free``: independent work by ``id`` of a collective; collectives without are omitted. Work that could hide several
    collectives of a computation counts once.
    """
    grouped: dict[tuple[int, str], list[Collective]] = {}
    for member in members:
        if free.get(id(member)):
            grouped.setdefault((module_index(trace, member.module), member.computation.name), []).append(member)
    parts = []
    for group in grouped.values():
        first = group[0]
        names = tuple(name for collective in group for name in names_of(collective))
        work = first.runs.times * _work_ns(
            trace, first, (work.name for collective in group for work in free[id(collective)])
        )
        sent: float | None = 0.0
        if measured_run_ns(trace, first.module, names) is None:
            transfers = [_transfer_ns(trace, collective) for collective in group]
            sent = None if None in transfers else sum(transfer or 0.0 for transfer in transfers)
            work = 0.0 if sent is None else min(work, sent)
        parts.append(Part(module=first.module, instructions=names, modelled_ns=None if sent is None else work))
    return parts


def _transfer_ns(trace: Trace, collective: Collective) -> float | None:
    target = trace.target
    if target is not None and target.platform == "tpu" and collective.module.platform == "tpu":
        modelled = collective_range(collective, target, factors_for(target))
        return float(modelled.time.low * collective.runs.times) if modelled.known else None
    cost = trace.fact(hlo_costs)[module_index(trace, collective.module)]
    row = cost.by_name.get((collective.computation.name, collective.start.name))
    sent = None if row is None else wire_ns(trace, row.once.wire_bytes)
    return None if sent is None else sent * collective.runs.times


def _work_ns(trace: Trace, collective: Collective, names: Iterable[str]) -> float:
    """Return the time of one run of instructions of a collective's computation, each once."""
    times, index = trace.fact(once_ns), module_index(trace, collective.module)
    return sum(times.get((index, collective.computation.name, name), 0.0) for name in dict.fromkeys(names))
