"""Why a collective of a compiled program blocks, as far as the program shows it, and what changes that.

GPUs (openxla/xla, ``gpu_compiler.cc`` and the pass ``gpu-convert-async-collectives-to-sync``): every collective is
split, whatever its size. Kinds that ``--xla_gpu_disable_async_collectives`` names are marked ``is_sync`` at once; after
scheduling, so is every pair with nothing between start and done. Since 2026 XLA makes such pairs one op again, which
keeps the mark only where the flag set it.

TPUs: libtpu puts a collective into fusions, between whose begin and end others run, or splits it into start and done.
When, by kind, was tried with libtpu 0.0.42.1 on v5e:2x4 and v6e:2x4: 64 KiB, 1 MiB and 16 MiB a device, beside matrix
products, elementwise work and nothing, in loops and out of them. Size decides nothing. All-gathers go into
fusions by default and all-reduces with flags, both beside matrix products alone; all-to-alls are split with a flag,
collective-permutes always, beside whatever there is; reduce-scatters with none that there is. Defaults of the flags:
openxla.org/xla/flags_guidance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from perfscope.analyzers.facts.hlo_collectives import Collective, is_marked
from perfscope.analyzers.facts.hlo_cost import hlo_costs
from perfscope.analyzers.facts.hlo_executions import module_index
from perfscope.analyzers.hlo.module import Instruction
from perfscope.analyzers.trace import Trace

Cause = Literal[
    "turned off by a flag", "off unless flags say otherwise", "no flag divides it", "no matrix product near it",
    "independent work was left elsewhere", "nothing independent near it",
]  # fmt: skip

BESIDE_PRODUCTS = ("all-gather", "all-reduce")
"""What a TPU's fusions divide: only beside matrix products."""

TPU_FLAGS: dict[str, tuple[str, ...]] = {
    "all-reduce": ("xla_enable_async_all_reduce", "xla_tpu_enable_async_collective_fusion_fuse_all_reduce"),
    "all-to-all": ("xla_tpu_enable_async_all_to_all",),
}
"""All of them together; each alone leaves an all-reduce as it is (tried, see above)."""

_GPU_KINDS = {
    "all-gather": "ALLGATHER", "all-reduce": "ALLREDUCE", "all-to-all": "ALLTOALL",
    "collective-broadcast": "COLLECTIVEBROADCAST", "collective-permute": "COLLECTIVEPERMUTE",
    "ragged-all-to-all": "RAGGEDALLTOALL", "reduce-scatter": "REDUCESCATTER",
}  # fmt: skip


def cause_of(trace: Trace, one: Collective, free: Sequence[Instruction]) -> Cause:
    """Why a collective that blocks does. ``free``: ``independent_work`` of it."""
    if one.module.platform == "gpu":
        if is_marked(one) and (one.between or one.blocks == "never split into start and done"):
            return "turned off by a flag"
    elif one.blocks == "never split into start and done":
        if one.kind not in (*TPU_FLAGS, *BESIDE_PRODUCTS):
            return "no flag divides it"
        if free and one.kind in BESIDE_PRODUCTS and not _has_product(trace, one, free):
            return "no matrix product near it"
        if free and one.kind in TPU_FLAGS:
            return "off unless flags say otherwise"
    return "independent work was left elsewhere" if free else "nothing independent near it"


def remedy(one: Collective, cause: Cause) -> str:
    """What changes it: flags that were tried, or how the program is to be written."""
    if cause == "turned off by a flag":
        return (
            f"Every {one.kind} was made to run in line, whatever is beside it: take {_GPU_KINDS[one.kind]} out of "
            "--xla_gpu_disable_async_collectives."
        )
    if cause == "off unless flags say otherwise":
        beside = "matrix products run" if one.kind in BESIDE_PRODUCTS else "others run"
        return (
            f"The TPU compiler leaves an {one.kind} one op by default, whatever its size. To let {beside} beside it: "
            f"{_options(one.kind)}."
        )
    if cause == "no flag divides it":
        return f"The TPU compiler leaves a {one.kind} one op; no flag that changes it is known."
    if cause == "no matrix product near it":
        flags = f", with {_options(one.kind)}" if one.kind in TPU_FLAGS else ""
        return (
            f"The TPU compiler runs an {one.kind} beside matrix products alone{flags}; none near it is independent. "
            "Put one there: of the next layer, jax.lax.scan(..., unroll=2), or of the other half of the batch."
        )
    if cause == "independent work was left elsewhere":
        if one.module.platform == "gpu":
            return (
                "XLA found nothing to put beside it in the order it chose. Let the scheduler move the independent work "
                'there: XLA_FLAGS="--xla_gpu_enable_latency_hiding_scheduler=true", with memory to spare for it.'
            )
        return (
            "The TPU compiler hides it by default and left the independent work elsewhere: it is short against the "
            "exchange, or memory is."
        )
    return (
        "Where nothing is independent, make it so: jax.lax.scan(..., unroll=2) puts the next layer beside this one; "
        "two half batches let one compute while the other communicates."
    )


def _options(kind: str) -> str:
    told = ", ".join(f'"{flag}": "true"' for flag in TPU_FLAGS[kind])
    return f"jax.jit(step, compiler_options={{{told}}})"


def _has_product(trace: Trace, one: Collective, free: Sequence[Instruction]) -> bool:
    cost = trace.fact(hlo_costs)[module_index(trace, one.module)]
    rows = (cost.by_name.get((one.computation.name, work.name)) for work in free)
    return any(row is not None and bool(row.once.products) for row in rows)
