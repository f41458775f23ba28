"""Which rules could not be evaluated and why, and which kinds of recording an analysis has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.analyzers.registry import subjects_of
from perfscope.model.plugins import named

if TYPE_CHECKING:
    from perfscope.analyzers.engine import Analysis


PROGRAM_FORMATS = frozenset({"compiled", "hlo_proto", "hlo_text"})
"""Formats of compiled or planned programs without a recording of their run."""


def programs_alone(analysis: Analysis) -> bool:
    """Whether the sources are compiled programs only, without events, steps or devices."""
    return bool(analysis.sources) and all(
        PROGRAM_FORMATS.issuperset(source.format.split(", ")) for source in analysis.sources
    )


MEMORY_FORMATS = frozenset({"jax_memory", "torch_memory"})
"""Formats of memory snapshots, which have neither steps nor device work."""


def memory_alone(analysis: Analysis) -> bool:
    """Whether the sources are memory snapshots only."""
    return bool(analysis.sources) and all(source.format in MEMORY_FORMATS for source in analysis.sources)


def plugins_alone(analysis: Analysis) -> bool:
    """Trace with a plug-in's recording but without steps, devices and times."""
    return any(map(analysis.of, named("results"))) and not (analysis.steps or analysis.windows or analysis.devices)


LOG_FORMAT = "torch_trace"
"""Format of torch.compile's log."""

LOG_ALONE = "torch.compile's log has no times of ops or kernels; `perfscope run` records both"
"""Reason why the other rules cannot evaluate such a log."""

DUMPS_ALONE = "the flight recorder's dumps have collectives but no times of ops or kernels; also record a trace"
"""Reason why the other rules cannot evaluate such dumps."""

DUMP_FORMAT = "flight_recorder"
"""Format of NCCL's flight recorder."""

COMPILED_FORMAT = "compiled"
"""Format written by `perfscope compile`: programs and plans, without a recording."""

NOTHING_RAN = "nothing ran"
"""Reason why rules about times and memory of a run cannot evaluate it."""

ONE_PROCESS = "a single process, so there is no other rank to compare with"
"""Reason why rules about jobs of several processes do not apply."""

TOPICS = {"compile_log": "torch.compile", "hlo": "XLA programs", "memory": "memory"}
"""Key of ``Trace.recorded`` that rules lack -> what they are on; of a plug-in's recording the key itself."""
OF_RANKS, OF_A_RUN = "jobs of several processes", "recordings of a run"
"""Topics of rules that a source of the wrong kind cannot support."""

FOLDED_FROM = 3
"""Number of rules with the same reason from which they are shown as one phrase; fewer rules are listed by name."""


JAX_FORMATS = frozenset({"hlo_proto", "hlo_text", "jax_memory", "nsys_jax", "xla_trace_json", "xplane"})
"""Formats of JAX programs; the other formats are of PyTorch programs."""

ANY_RUN = frozenset({"device_work", "launch_links", "op_links", "runtime_calls", "steps"})
TORCH_RUN = ANY_RUN | {"autograd", "host_ops", "memory", "memory_state", "op_graph", "shapes", "tensors"}
JAX_RUN = ANY_RUN | {"compile_events", "hlo", "host_reads"}
"""Keys that `perfscope run` records for every program, at its default level."""

LESS = ("times_only", "whole", "recorders", "numerics")
"""Options of a run that leave recordings out, besides its level and tool. ``numerics`` is of runs of older versions."""


def recordable(analysis: Analysis) -> int:
    """Count the rules that lack a recording which `perfscope run` makes; 0 if the run used its defaults or more."""
    options = {} if analysis.run is None else analysis.run.get("options", {})
    full = options.get("level") != "light" and not options.get("capture") and not any(map(options.get, LESS))
    if analysis.run is not None and full:
        return 0
    records = JAX_RUN if JAX_FORMATS & {source.format for source in analysis.sources} else TORCH_RUN
    return sum(
        outcome.status == "abstained" and bool(outcome.missing) and records.issuperset(outcome.missing)
        for outcome in analysis.outcomes
    )


def logs_alone(analysis: Analysis) -> bool:
    """Whether the sources are only logs of torch.compile or dumps of the flight recorder.

    They have no ops, steps or devices, whatever ran.
    """
    if analysis.steps or analysis.windows or analysis.devices:
        return False
    formats = {source.format for source in analysis.sources if source.events_read}
    return formats == {DUMP_FORMAT} or (bool(analysis.compile.ranks) and formats <= {LOG_FORMAT})


def not_evaluated(analysis: Analysis) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return (reason, rules); reasons about missing recordings are last."""
    reasons: dict[tuple[str, str | None], list[str]] = {}
    topics = {key: key.replace("_", " ") for key in named("recordings")} | TOPICS
    alone = logs_alone(analysis)
    own, why = ("compile_log", LOG_ALONE) if analysis.compile.ranks else ("flight_record", DUMPS_ALONE)
    compiled = bool(analysis.sources) and {source.format for source in analysis.sources} == {COMPILED_FORMAT}
    of_ranks = [
        outcome
        for outcome in analysis.outcomes
        if outcome.status == "abstained" and "ranks" in subjects_of(outcome.rule)
    ]
    single = (
        not alone and len(of_ranks) > 1 and len(analysis.sources) == 1 and (analysis.sources[0].world_size or 1) == 1
    )
    for outcome in analysis.outcomes:
        if outcome.status == "abstained":
            reason = outcome.reason or "no reason given"
            topic = topics.get(outcome.missing[-1]) if outcome.missing else None
            subjects = subjects_of(outcome.rule)
            if compiled and ("programs" not in subjects or outcome.missing):
                reason, topic = NOTHING_RAN, OF_A_RUN
            elif single and "ranks" in subjects:
                reason, topic = ONE_PROCESS, OF_RANKS
            elif alone and own not in subjects:
                reason, topic = why, OF_A_RUN
            reasons.setdefault((reason, topic), []).append(outcome.rule)
    ordered = sorted(reasons.items(), key=lambda item: item[0][1] is not None)
    return tuple((reason, _named(rules, topic)) for (reason, topic), rules in ordered)


def _named(rules: list[str], topic: str | None) -> tuple[str, ...]:
    """Return the rules as one short phrase if they concern a missing recording."""
    if topic is not None and (len(rules) >= FOLDED_FROM or topic == OF_RANKS):
        return (f"{len(rules)} rules on {topic}",)
    return tuple(rules)
