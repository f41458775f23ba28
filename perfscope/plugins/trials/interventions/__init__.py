"""Interventions: changes made to a program from outside to measure their gain (`perfscope try`).

The registry maps a name to ``module:object`` of an `Intervention`. Plug-ins add theirs.
"""

from __future__ import annotations

from perfscope.model.errors import UsageError, did_you_mean
from perfscope.model.plugins import load, named
from perfscope.plugins.trials.interventions.base import Intervention

_HERE = "perfscope.plugins.trials.interventions"

INTERVENTIONS: dict[str, str] = {
    "autocast-bf16": f"{_HERE}.precision:AUTOCAST_BF16",
    "channels-last": f"{_HERE}.layout:CHANNELS_LAST",
    "checkpoint-blocks": f"{_HERE}.checkpointing:BLOCKS",
    "checkpoint-off": f"{_HERE}.checkpointing:OFF",
    "checkpoint-selective": f"{_HERE}.checkpointing:SELECTIVE",
    "compile": f"{_HERE}.compilation:COMPILE",
    "compile-blocks": f"{_HERE}.compilation:BLOCKS",
    "compile-max-autotune": f"{_HERE}.compilation:MAX_AUTOTUNE",
    "compile-reduce-overhead": f"{_HERE}.compilation:REDUCE_OVERHEAD",
    "cuda-graphs": f"{_HERE}.compilation:CUDA_GRAPHS",
    "cudnn-benchmark": f"{_HERE}.layout:CUDNN_BENCHMARK",
    "ddp-bucket-view": f"{_HERE}.data_parallel:BUCKET_VIEW",
    "ddp-large-buckets": f"{_HERE}.data_parallel:LARGE_BUCKETS",
    "ddp-no-sync": f"{_HERE}.data_parallel:NO_SYNC",
    "ddp-static-graph": f"{_HERE}.data_parallel:STATIC_GRAPH",
    "debug-off": f"{_HERE}.debugging:TORCH_DEBUG_OFF",
    "defer-read": f"{_HERE}.transfers:DEFER_READ",
    "expandable-segments": f"{_HERE}.allocator:EXPANDABLE_SEGMENTS",
    "float32-default": f"{_HERE}.precision:FLOAT32_DEFAULT",
    "foreach-optimizer": f"{_HERE}.optimizers:FOREACH",
    "fused-optimizer": f"{_HERE}.optimizers:FUSED",
    "gc-freeze": f"{_HERE}.host:GC_FREEZE",
    "gc-off": f"{_HERE}.host:GC_OFF",
    "jax-cache": f"{_HERE}.jax_settings:COMPILATION_CACHE",
    "jax-combine-collectives": f"{_HERE}.jax_settings:COMBINE_COLLECTIVES",
    "jax-command-buffers": f"{_HERE}.jax_settings:COMMAND_BUFFERS",
    "jax-debug-off": f"{_HERE}.debugging:JAX_DEBUG_OFF",
    "jax-donate": f"{_HERE}.donation:DONATE",
    "jax-jit-gradients": f"{_HERE}.jax_functions:JIT_GRADIENTS",
    "jax-latency-hiding": f"{_HERE}.jax_settings:LATENCY_HIDING",
    "jax-matmul-default": f"{_HERE}.jax_settings:MATMUL_DEFAULT",
    "jax-remat-dots": f"{_HERE}.jax_functions:REMAT_DOTS",
    "jax-remat-off": f"{_HERE}.jax_functions:REMAT_OFF",
    "jax-triton-gemm": f"{_HERE}.jax_settings:TRITON_GEMM",
    "loader-workers": f"{_HERE}.loaders:WORKERS",
    "matmul-high": f"{_HERE}.precision:MATMUL_HIGH",
    "matmul-medium": f"{_HERE}.precision:MATMUL_MEDIUM",
    "non-blocking": f"{_HERE}.transfers:NON_BLOCKING",
    "persistent-workers": f"{_HERE}.loaders:PERSISTENT",
    "pin-memory": f"{_HERE}.loaders:PIN_MEMORY",
    "prefetch": f"{_HERE}.loaders:PREFETCH",
    "sdpa-fused": f"{_HERE}.attention:SDPA_FUSED",
    "threads-all": f"{_HERE}.host:THREADS_ALL",
    "threads-one": f"{_HERE}.host:THREADS_ONE",
    "zero-grad-none": f"{_HERE}.optimizers:ZERO_GRAD_NONE",
}


def intervention_names() -> tuple[str, ...]:
    """Names of all interventions, including those of plug-ins, sorted."""
    return tuple(sorted({*INTERVENTIONS, *named("interventions")}))


def load_intervention(name: str) -> Intervention:
    """Return the intervention of that name; underscores count as dashes. ``UsageError`` if it is unknown."""
    wanted = name.replace("_", "-")
    home = {**named("interventions"), **INTERVENTIONS}.get(wanted)
    if home is None:
        hint = did_you_mean(name, intervention_names()) or "; `perfscope try --list` lists them"
        raise UsageError(f"{name}: no such intervention{hint}")
    found = load(home)
    if not isinstance(found, Intervention):
        raise UsageError(f"{name}: {home} is not an Intervention")
    return found
