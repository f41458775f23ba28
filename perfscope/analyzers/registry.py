"""The rules, a written list: id -> module. One rule a file, the file name is the id.

A rule's module has ``NEEDS`` (keys of ``perfscope.model.trace.RECORDED``) and
``check(trace) -> Iterable[Finding]``; it may have ``JUDGES`` (`Subject`: what it has findings on besides the recording
of one process), ``compare(traces)`` for what shows only where several traces lie side by side, and
``check_plan(trace)`` for what it says of a planned PyTorch program. Its docstring is its page in ``docs/rules``.
"""

from __future__ import annotations

import importlib

from perfscope.model.errors import UsageError, did_you_mean
from perfscope.model.finding import Rule
from perfscope.model.plugins import installed

RULES: dict[str, str] = {
    "blocking_collective": "perfscope.analyzers.programs.rules.blocking_collective",
    "compile_time": "perfscope.analyzers.torch_compile.rules.compile_time",
    "dense_expert_compute": "perfscope.analyzers.programs.rules.dense_expert_compute",
    "donation_missed": "perfscope.analyzers.programs.rules.donation_missed",
    "dynamic_shape_churn": "perfscope.analyzers.torch_compile.rules.dynamic_shape_churn",
    "eager_fallback": "perfscope.analyzers.torch_compile.rules.eager_fallback",
    "excess_remat": "perfscope.analyzers.checkpointing.rules.excess_remat",
    "expert_imbalance": "perfscope.analyzers.ranks.rules.expert_imbalance",
    "exposed_communication": "perfscope.analyzers.ranks.rules.exposed_communication",
    "exposed_copy": "perfscope.analyzers.time.rules.exposed_copy",
    "full_precision_matmul": "perfscope.analyzers.ops.rules.full_precision_matmul",
    "graph_break": "perfscope.analyzers.torch_compile.rules.graph_break",
    "host_bound": "perfscope.analyzers.time.rules.host_bound",
    "host_sync": "perfscope.analyzers.time.rules.host_sync",
    "hung_collective": "perfscope.analyzers.ranks.rules.hung_collective",
    "input_stall": "perfscope.analyzers.time.rules.input_stall",
    "launch_bound": "perfscope.analyzers.time.rules.launch_bound",
    "link_contention": "perfscope.analyzers.ranks.rules.link_contention",
    "low_precision_accumulation": "perfscope.analyzers.numerics.rules.low_precision_accumulation",
    "memory_fragmentation": "perfscope.analyzers.memory.rules.memory_fragmentation",
    "memory_leak": "perfscope.analyzers.memory.rules.memory_leak",
    "missing_remat": "perfscope.analyzers.checkpointing.rules.missing_remat",
    "nonfinite": "perfscope.analyzers.numerics.rules.nonfinite",
    "nvlink_stall": "perfscope.analyzers.ranks.rules.nvlink_stall",
    "oom_near": "perfscope.analyzers.memory.rules.oom_near",
    "pageable_copy": "perfscope.analyzers.time.rules.pageable_copy",
    "peak_owner": "perfscope.analyzers.memory.rules.peak_owner",
    "pipeline_bubble": "perfscope.analyzers.ranks.rules.pipeline_bubble",
    "rank_divergence": "perfscope.analyzers.torch_compile.rules.rank_divergence",
    "recompilation": "perfscope.analyzers.torch_compile.rules.recompilation",
    "resharding_collective": "perfscope.analyzers.programs.rules.resharding_collective",
    "sequential_scan": "perfscope.analyzers.programs.rules.sequential_scan",
    "slow_steps": "perfscope.analyzers.time.rules.slow_steps",
    "small_collectives": "perfscope.analyzers.ranks.rules.small_collectives",
    "small_kernels": "perfscope.analyzers.time.rules.small_kernels",
    "straggler": "perfscope.analyzers.ranks.rules.straggler",
    "unexplained_idle": "perfscope.analyzers.time.rules.unexplained_idle",
    "unfused_attention": "perfscope.analyzers.ops.rules.unfused_attention",
    "unfused_ops": "perfscope.analyzers.ops.rules.unfused_ops",
    "unfused_optimizer": "perfscope.analyzers.ops.rules.unfused_optimizer",
    "unstable_scale": "perfscope.analyzers.numerics.rules.unstable_scale",
    "warmup_compile": "perfscope.analyzers.time.rules.warmup_compile",
}

ENTRY_POINTS = "perfscope.rules"


def rule_ids() -> tuple[str, ...]:
    """Ids of all rules, ours and those of installed packages, sorted."""
    return tuple(sorted({*RULES, *(entry.name for entry in installed(ENTRY_POINTS))}))


def load_rule(rule_id: str) -> Rule:
    """The rule of that id; dashes are taken as underscores. ``UsageError`` if there is none."""
    wanted = rule_id.replace("-", "_")
    path = RULES.get(wanted)
    if path is not None:
        module = importlib.import_module(path)
    else:
        results = [entry for entry in installed(ENTRY_POINTS) if entry.name == wanted]
        if not results:
            hint = did_you_mean(rule_id, rule_ids()) or "; `perfscope rules` lists them"
            raise UsageError(f"{rule_id}: no such rule{hint}")
        module = results[0].load()
    return Rule(
        id=wanted,
        doc=module.__doc__ or "",
        needs=tuple(module.NEEDS),
        check=module.check,
        judges=tuple(getattr(module, "JUDGES", ())),
        compare=getattr(module, "compare", None),
        plan=getattr(module, "check_plan", None),
        replaces=getattr(module, "REPLACES", False),
        rest=getattr(module, "check_rest", None),
        last=getattr(module, "LAST", False),
        examined=getattr(module, "examined", None),
        compared=getattr(module, "compared", None),
    )
