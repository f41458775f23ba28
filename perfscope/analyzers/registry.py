"""The list of rules: id -> module. One file per rule; the file name is the id.

A rule's module has ``check(trace) -> Iterable[Finding]``. Optional are ``compare(traces)`` for findings that need
several traces, and ``check_plan(trace)`` for findings in a planned PyTorch program. Its docstring is its page in
``docs/rules``. Its inputs and subjects are listed here, so that a rule without its input is not imported; a rule of
another package has ``NEEDS`` and optionally ``JUDGES`` in its module.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from perfscope.model.errors import UsageError, did_you_mean, log_failure
from perfscope.model.finding import AbstainError, Finding, Rule, Subject
from perfscope.model.plugins import RuleHome, named

if TYPE_CHECKING:
    from perfscope.model.trace import Trace

_log = logging.getLogger(__name__)

RULES: dict[str, str] = {
    "batch_bubble": "perfscope.analyzers.ops.rules.batch_bubble",
    "blocking_collective": "perfscope.analyzers.programs.rules.blocking_collective",
    "checkpoint_stall": "perfscope.analyzers.time.rules.checkpoint_stall",
    "compile_time": "perfscope.analyzers.torch_compile.rules.compile_time",
    "constant_work": "perfscope.analyzers.ops.rules.constant_work",
    "context_parallel_imbalance": "perfscope.analyzers.ranks.rules.context_parallel_imbalance",
    "data_movement": "perfscope.analyzers.ops.rules.data_movement",
    "debug_mode": "perfscope.analyzers.ops.rules.debug_mode",
    "dense_expert_compute": "perfscope.analyzers.programs.rules.dense_expert_compute",
    "donation_missed": "perfscope.analyzers.programs.rules.donation_missed",
    "double_precision": "perfscope.analyzers.ops.rules.double_precision",
    "dynamic_shape_churn": "perfscope.analyzers.torch_compile.rules.dynamic_shape_churn",
    "eager_fallback": "perfscope.analyzers.torch_compile.rules.eager_fallback",
    "eval_stall": "perfscope.analyzers.time.rules.eval_stall",
    "expert_imbalance": "perfscope.analyzers.ranks.rules.expert_imbalance",
    "exposed_communication": "perfscope.analyzers.ranks.rules.exposed_communication",
    "exposed_copy": "perfscope.analyzers.time.rules.exposed_copy",
    "frozen_gradients": "perfscope.analyzers.ops.rules.frozen_gradients",
    "full_precision_matmul": "perfscope.analyzers.ops.rules.full_precision_matmul",
    "graph_break": "perfscope.analyzers.torch_compile.rules.graph_break",
    "host_bound": "perfscope.analyzers.time.rules.host_bound",
    "host_callback": "perfscope.analyzers.programs.rules.host_callback",
    "host_sync": "perfscope.analyzers.time.rules.host_sync",
    "hung_collective": "perfscope.analyzers.ranks.rules.hung_collective",
    "input_stall": "perfscope.analyzers.time.rules.input_stall",
    "launch_bound": "perfscope.analyzers.time.rules.launch_bound",
    "link_contention": "perfscope.analyzers.ranks.rules.link_contention",
    "memory_fragmentation": "perfscope.analyzers.memory.rules.memory_fragmentation",
    "memory_leak": "perfscope.analyzers.memory.rules.memory_leak",
    "needless_grad": "perfscope.analyzers.ops.rules.needless_grad",
    "nvlink_stall": "perfscope.analyzers.ranks.rules.nvlink_stall",
    "oom_near": "perfscope.analyzers.memory.rules.oom_near",
    "padding_waste": "perfscope.analyzers.ops.rules.padding_waste",
    "pageable_copy": "perfscope.analyzers.time.rules.pageable_copy",
    "peak_owner": "perfscope.analyzers.memory.rules.peak_owner",
    "pipeline_bubble": "perfscope.analyzers.ranks.rules.pipeline_bubble",
    "python_loop": "perfscope.analyzers.ops.rules.python_loop",
    "rank_divergence": "perfscope.analyzers.torch_compile.rules.rank_divergence",
    "recompilation": "perfscope.analyzers.torch_compile.rules.recompilation",
    "recomputed_prefix": "perfscope.analyzers.time.rules.recomputed_prefix",
    "repeated_backward": "perfscope.analyzers.ops.rules.repeated_backward",
    "repeated_reductions": "perfscope.analyzers.ranks.rules.repeated_reductions",
    "repeated_work": "perfscope.analyzers.programs.rules.repeated_work",
    "resharding_collective": "perfscope.analyzers.programs.rules.resharding_collective",
    "sequential_scan": "perfscope.analyzers.programs.rules.sequential_scan",
    "single_requests": "perfscope.analyzers.time.rules.single_requests",
    "slow_steps": "perfscope.analyzers.time.rules.slow_steps",
    "small_collectives": "perfscope.analyzers.ranks.rules.small_collectives",
    "small_kernels": "perfscope.analyzers.time.rules.small_kernels",
    "step_growth": "perfscope.analyzers.time.rules.step_growth",
    "storage_bound": "perfscope.analyzers.time.rules.storage_bound",
    "straggler": "perfscope.analyzers.ranks.rules.straggler",
    "unexplained_idle": "perfscope.analyzers.time.rules.unexplained_idle",
    "unfused_attention": "perfscope.analyzers.ops.rules.unfused_attention",
    "unfused_ops": "perfscope.analyzers.ops.rules.unfused_ops",
    "unfused_optimizer": "perfscope.analyzers.ops.rules.unfused_optimizer",
    "unjitted_step": "perfscope.analyzers.time.rules.unjitted_step",
    "warmup_compile": "perfscope.analyzers.time.rules.warmup_compile",
}

NEEDS: dict[str, tuple[str, ...]] = {
    "batch_bubble": ("op_graph",),
    "blocking_collective": ("hlo",),
    "debug_mode": ("host_ops",),
    "dense_expert_compute": ("hlo",),
    "donation_missed": ("hlo",),
    "double_precision": ("host_ops",),
    "dynamic_shape_churn": ("compile_log",),
    "eager_fallback": ("compile_log",),
    "exposed_copy": ("device_work",),
    "frozen_gradients": ("op_graph",),
    "graph_break": ("compile_log",),
    "host_callback": ("hlo",),
    "hung_collective": ("flight_record",),
    "input_stall": ("host_ops",),
    "needless_grad": ("host_ops",),
    "padding_waste": ("op_graph",),
    "pageable_copy": ("device_work",),
    "python_loop": ("op_graph",),
    "repeated_backward": ("host_ops", "autograd"),
    "repeated_work": ("hlo",),
    "repeated_reductions": ("host_ops",),
    "resharding_collective": ("hlo",),
    "sequential_scan": ("hlo",),
    "slow_steps": ("python_samples",),
    "small_kernels": ("device_work", "launch_links"),
    "step_growth": ("run_steps",),
    "storage_bound": ("python_samples", "storage"),
    "unfused_optimizer": ("host_ops",),
}
"""Keys of ``perfscope.model.trace.RECORDED`` that our rules need; a rule that is not listed abstains by itself."""

JUDGES: dict[str, tuple[Subject, ...]] = {
    "blocking_collective": ("programs",),
    "compile_time": ("compile_log", "programs"),
    "constant_work": ("programs",),
    "context_parallel_imbalance": ("ranks",),
    "data_movement": ("programs",),
    "dense_expert_compute": ("programs",),
    "donation_missed": ("programs",),
    "dynamic_shape_churn": ("compile_log", "programs"),
    "eager_fallback": ("compile_log", "programs"),
    "expert_imbalance": ("ranks",),
    "exposed_communication": ("programs",),
    "full_precision_matmul": ("programs",),
    "graph_break": ("compile_log", "programs"),
    "host_callback": ("programs",),
    "host_sync": ("programs",),
    "hung_collective": ("ranks", "flight_record"),
    "link_contention": ("ranks",),
    "nvlink_stall": ("ranks",),
    "oom_near": ("programs",),
    "peak_owner": ("programs",),
    "pipeline_bubble": ("programs", "ranks"),
    "rank_divergence": ("compile_log", "programs", "ranks"),
    "recompilation": ("compile_log", "programs"),
    "repeated_work": ("programs",),
    "resharding_collective": ("programs",),
    "sequential_scan": ("programs",),
    "small_collectives": ("ranks",),
    "straggler": ("ranks",),
    "unfused_attention": ("programs",),
    "unfused_ops": ("compile_log", "programs"),
    "unfused_optimizer": ("programs",),
}
"""Subjects of our rules other than the recording of one process."""


def rule_homes() -> dict[str, RuleHome]:
    """All rules, of the core and of plug-ins, sorted by id."""
    own = {
        rule: RuleHome(module=module, needs=NEEDS.get(rule, ()), judges=JUDGES.get(rule, ()), compares_digests=True)
        for rule, module in RULES.items()
    }
    return dict(sorted({**named("rules"), **own}.items()))


def rule_ids() -> tuple[str, ...]:
    """Ids of all rules, of the core and of plug-ins, sorted."""
    return tuple(rule_homes())


def subjects_of(rule_id: str) -> tuple[Subject, ...]:
    """Subjects of a rule's findings besides the recording of one process; empty if it is not installed."""
    home = rule_homes().get(rule_id)
    return () if home is None else home.judges


def load_rule(rule_id: str) -> Rule:
    """Return the rule with that id; dashes count as underscores. ``UsageError`` for an unknown id."""
    wanted = rule_id.replace("-", "_")
    home = rule_homes().get(wanted)
    if home is None:
        hint = did_you_mean(rule_id, rule_ids()) or "; `perfscope rules` lists them"
        raise UsageError(f"{rule_id}: unknown rule{hint}")
    module = importlib.import_module(home.module)
    return Rule(
        id=wanted,
        doc=module.__doc__ or "",
        needs=tuple(getattr(module, "NEEDS", home.needs)),
        check=module.check,
        judges=tuple(getattr(module, "JUDGES", home.judges)),
        compare=getattr(module, "compare", None),
        plan=getattr(module, "check_plan", None),
        replaces=getattr(module, "REPLACES", False),
        rest=getattr(module, "check_rest", None),
        last=getattr(module, "LAST", False),
        examined=getattr(module, "examined", None),
        compared=getattr(module, "compared", None),
        device_times=home.device_times,
    )


def recorded_by(traces: Iterable[Trace]) -> frozenset[str]:
    """Return the keys of `RECORDED` that at least one trace has."""
    return frozenset().union(*(trace.recorded for trace in traces))


def chosen_rules(
    rules: Iterable[str] | None, off: Mapping[str, str] | None = None, *, recorded: frozenset[str] | None = None
) -> tuple[Rule, ...]:
    """Return the rules with these ids, all for ``None``. A rule that cannot be imported abstains with the error.

    ``off``: rule -> reason for turning it off; these abstain with that reason. ``recorded``: recordings of the traces
    (``None`` for all); a rule that needs more is not imported and abstains.
    """
    reasons = off or {}
    needs = {rule: home.needs for rule, home in rule_homes().items()}
    return tuple(
        _abstaining(rule, f"turned off in the configuration: {reasons[rule]}") if rule in reasons
        else _loaded(rule) if recorded is None or "torch_plan" in recorded or recorded.issuperset(needs.get(rule, ()))
        else Rule(id=rule, doc="", needs=needs[rule], check=_without_input)
        for rule in (needs if rules is None else rules)
    )  # fmt: skip


def _without_input(_: Trace) -> Iterable[Finding]:
    """Placeholder for a rule whose needs the trace does not meet; it is never called."""
    raise AssertionError


def _loaded(rule_id: str) -> Rule:
    """Return the rule.

    One that cannot be imported (for example, from a broken third-party package) abstains with the error.
    """
    try:
        return load_rule(rule_id)
    except (ImportError, AttributeError) as error:
        problem = f"the rule cannot be loaded: {type(error).__name__}: {error}"
        log_failure(_log, f"rule {rule_id} cannot be loaded", error)

    return _abstaining(rule_id, problem)


def _abstaining(rule_id: str, reason: str) -> Rule:
    """Return a rule that abstains for every trace with ``reason``."""

    def abstain(_: Trace) -> Iterable[Finding]:
        raise AbstainError(reason)

    return Rule(id=rule_id.replace("-", "_"), doc="", needs=(), check=abstain)
