"""What to do about time spent compiling, by what dominates it and by torch's reason for not caching."""

from __future__ import annotations

import re

from perfscope.analyzers.facts.compile_phases import Stage

MIN_REPEATED = 0.5
"""Of a graph's nodes: compiling its repeated block once halves the work behind tracing."""

_KEEP = (
    "Keep inductor's cache between starts: set TORCHINDUCTOR_CACHE_DIR to a folder that outlives the process, or ship "
    "one run's: artifacts, _ = torch.compiler.save_cache_artifacts() after the first steps, and "
    "torch.compiler.load_cache_artifacts(artifacts) before the first compiled call."
)
_ASK = (
    "No cache was asked: take TORCHINDUCTOR_FORCE_DISABLE_CACHES=1 out of the environment and leave "
    "TORCHINDUCTOR_FX_GRAPH_CACHE at 1. "
)
_BY_STAGE = {
    Stage.TUNING: ' Autotuning dominates: compile with mode="default" while developing, max-autotune for the last run.',
    Stage.KERNELS: " Building kernels dominates: raise TORCHINDUCTOR_COMPILE_THREADS to the free cores of the host.",
}

_REASONS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"context_fn does not have a cache_hash"),
        "Give the context_fn of selective checkpointing an attribute `cache_hash` (a string that changes with the "
        "policy).",
    ),
    (
        re.compile(r"without uuid\(\) method|uuid\(\) returned None"),
        "Wrap the solver or estimator in the class that torch names and return a fixed uuid() from it.",
    ),
    (
        re.compile(r"[Uu]nsupported call_(function|method)"),
        "AOT autograd's cache takes only ops that it knows to be pure. Let the function that torch names stand outside "
        "the compiled region, register it as torch.library.custom_op, or update torch: each version takes more.",
    ),
    (re.compile(r"freezing"), "Frozen weights are part of the code: compile without torch._inductor.config.freezing."),
    (
        re.compile(r"FX graph cache is not enabled"),
        "AOT autograd's cache needs inductor's: leave TORCHINDUCTOR_FX_GRAPH_CACHE at 1.",
    ),
    (
        re.compile(r"custom.*pass|without uuid", re.IGNORECASE),
        "Derive the custom pass from torch._inductor.custom_graph_pass.CustomGraphPass and return a uuid() for it.",
    ),
)


def cold_advice(stage: Stage | None, repeated: float, *, asked: bool) -> str:
    """Advice on a cold start that ``stage`` dominates (``None``: not known).

    ``repeated``: part of the graphs' nodes that a repeated block makes again. ``asked``: a cache was asked at all.
    """
    advice = _KEEP if asked else _ASK + _KEEP
    if repeated >= MIN_REPEATED:
        advice += (
            f" {100 * repeated:.0f}% of the graphs' ops are a block made again: compile it once with `for layer in "
            "model.layers: layer.compile()`, or mark its forward with torch.compiler.nested_compile_region."
        )
    return advice + (_BY_STAGE.get(stage, "") if stage is not None else "")


def bypass_advice(reason: str) -> str:
    """What makes a compilation cacheable that was refused with ``reason``."""
    known = next((advice for pattern, advice in _REASONS if pattern.search(reason)), None)
    return known or (
        "Take out of the compiled function what torch names as its reason; TORCH_LOGS=+torch._functorch.autograd_cache "
        "says more."
    )
