"""The measured steps contain compilation, autotuning or loading of code.

Example:
    Before::

        begin = time.perf_counter()
        step(batch)                             # compiles

    After::

        step(batch)
        begin = time.perf_counter()
        step(batch)

Why it costs: the first calls of a compiled function, a Triton kernel or a library trace, compile, tune and load code
while the device waits. Such steps are not representative of later ones; in a long run the same time recurs with every
new shape.

How it is found: from the account of the step, the idle time in which the host was in torch.compile's regions, in the
lookup of compiled code, in Triton's or XLA's compiler, in calls that load modules (a launch of 1 ms or more on an idle
device loads its code first), or in the initialisation of the driver. The cost is measured, without the time that
`recompilation` and `dynamic_shape_churn` explain. The line is that of the recorded Python stack, else the one with most
samples. Steps in which the host compiles for more than a tenth of the step, and for more than half of the shortest
step, are left out of all averages, unless all steps do.

If only the first recorded steps compile, the program compiles once and needs no change. The recording began too early,
and the finding is listed under *Record it better*.

Fix: warm up before the measurement (`perfscope run` skips the first steps; with your own profiler use
`schedule(wait, warmup, active)`). Keep shapes stable or pad them to few sizes, `torch.compile(dynamic=True)`, and
persist the caches between runs (`TORCHINDUCTOR_CACHE_DIR`, `jax.config.update("jax_compilation_cache_dir", ...)`).
`compile_time` reports the time that a cache would have saved, if the log of torch.compile is recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from perfscope.analyzers.examined import host_records
from perfscope.analyzers.spans import removed_time, worst_spans
from perfscope.analyzers.time.account import StepAccount, step_accounts, time_of_cause
from perfscope.analyzers.time.calls import Framework, framework
from perfscope.analyzers.time.host_activity import (
    HostActivity,
    HostWork,
    host_work,
    main_thread,
    sample_activities,
)
from perfscope.analyzers.time.samples import free_samples, nearest_samples, sampled_lines
from perfscope.analyzers.time.sites import UNKNOWN_SITE, CallSite, call_site
from perfscope.analyzers.time.steps import steps_known, timed_cost
from perfscope.model.finding import MOST_ROWS, AbstainError, Finding, Once
from perfscope.model.intervals import Intervals
from perfscope.model.severity import HIGH_SHARE
from perfscope.model.trace import MISSING, Trace
from perfscope.model.units import format_ns

LEAST_SHARE = HIGH_SHARE
"""Smallest share of all steps: with less, their average differs from a warm program's by less than a twentieth."""

MOST_NAMED = 5


examined = host_records

_LATER: dict[Framework, str] = {
    "torch": "Record later steps: `perfscope run` skips the first ones, `torch.profiler.schedule(wait=1, warmup=1, "
    "active=3)` does, too.",
    "jax": "Record later steps: `perfscope run` skips the first ones; or call the step once before "
    "`jax.profiler.start_trace`.",
    "none": "Record later steps, when all code is loaded.",
}


def check(trace: Trace) -> Iterable[Finding]:
    """Yield the findings if no other rule explains anything."""
    return check_rest(trace, ())


def check_rest(trace: Trace, found: Sequence[tuple[str, Finding]]) -> Iterable[Finding]:
    """Yield one finding for the device that waits longest for compilation that none of ``found`` explains."""
    accounts = trace.fact(step_accounts)
    if not accounts:
        raise AbstainError("neither device work nor ops of the host were recorded", ("host_ops",))
    account = max(accounts, key=lambda one: one.total_ns["compilation"])
    whole = account.total_ns["compilation"]
    explained = min(whole, sum(finding.covers_ns.get("compilation", 0) for _, finding in found))
    cost = whole - explained
    if not cost or cost < LEAST_SHARE * account.whole_ns:
        return
    spans = time_of_cause(trace, account, "compilation")
    work = host_work(trace, spans)[:MOST_ROWS]
    timed = timed_cost(trace, cost, account.whole_ns)
    once = None
    if account.cold:  # other steps have none of it
        timed["cost_ns_per_step"] = None
        once = Once(times=len(account.cold), steps=steps_known(trace), last_step=max(account.cold))
    finding = Finding(
        subject="compilation in measured steps",
        title="code is compiled or loaded within the steps"
        + (f": {len(account.cold):,} cold step{'s' if len(account.cold) > 1 else ''}" if account.cold else ""),
        detail=_detail(account.cold, explained),
        **timed,
        once=once,
        covers_ns={"compilation": whole},  # in addition to other findings, because the largest of several rules counts
        advice="Warm up with every shape before the loop, keep shapes stable, and keep compile caches between runs.",
        where=_site(trace, spans, work).where(),
        evidence=tuple({"host_was_in": item.name, "idle_ns": item.total_ns, "pieces": item.pieces} for item in work),
        spans=worst_spans(spans.starts, spans.ends, spans.ends - spans.starts),
        removes=(removed_time(spans),),
    )
    if _only_at_first(account):
        finding = replace(
            finding, about="recording", record=_LATER[framework(trace)], advice="", severity="low", cost_ns=None,
            cost_ns_per_step=None, removes=(), once=None,
        )  # fmt: skip
    yield finding


def _only_at_first(account: StepAccount) -> bool:
    """Whether only the first recorded steps compile: the program does so once, and the recording has it by chance."""
    if not account.cold or len(account.cold) >= len(account.numbers):
        return False
    warm = [number for number in account.numbers if number not in account.cold]
    return max(account.cold) < min(warm)


def _detail(cold: Sequence[int], explained: int) -> str:
    left_out = f" and {len(cold) - MOST_NAMED:,} more" if len(cold) > MOST_NAMED else ""
    steps = f"step{'s' if len(cold) > 1 else ''} {', '.join(map(str, cold[:MOST_NAMED]))}{left_out}"
    sentences = [f"Averages exclude {steps}."] if cold else []
    if explained:
        sentences.append(f"Another {format_ns(explained)} of compiling is in the findings on recompilation.")
    return " ".join(sentences)


def _site(trace: Trace, spans: Intervals, work: Sequence[HostWork]) -> CallSite:
    """Return the line of the longest work that has one, else that of most samples in ``spans``, else in other steps."""
    sites = (call_site(trace, item.slice) for item in work if item.slice != MISSING)
    known = next((site for site in sites if site.file is not None), None)
    if known is not None:
        return known
    thread = trace.fact(main_thread)
    inside = nearest_samples(trace, thread, spans).samples
    free = free_samples(trace, thread)
    compiling = free[trace.fact(sample_activities)[free] == HostActivity.COMPILATION]
    lines = sampled_lines(trace, inside if len(inside) else compiling)
    return next((line.site for line in lines if line.site.file is not None), UNKNOWN_SITE)
