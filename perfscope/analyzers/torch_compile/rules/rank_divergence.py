"""Ranks of one job compile different graphs, or a different number of times.

Why it costs:
    A rank that compiles once more than the others keeps them waiting at the next collective, for seconds to
    minutes. Where the graphs themselves differ the ranks may call different collectives, or the same ones in
    another order: the job hangs until the timeout of its process group ends it. It begins with something
    that differs between ranks and that a guard looks at: a batch's size, a Python number, a flag, an object's
    identity; or with caches that hold a graph on one machine and not on another.

How it is found:
    The logs of several ranks side by side, compilation by compilation in the order they began: function, line, whether
    the frame was compiled at all, and the ops of its graphs in order (sizes and constants left out: they may differ by
    rank). The largest set of ranks that agree is held to be right; every other set is one finding with the first
    difference, both sides of it, and the guard that failed, if one did. Collectives in the graphs (`_c10d_functional`)
    come first: another order of them is the gravest. Where all compiled the same and only caches answered differently,
    it is said if it made a second of difference.

    The cost is modelled, and an upper bound: what one side spent on compilations that the other has not (of caches: how
    much longer the slowest of these ranks compiled than the fastest), once a run.
    One rank alone, or logs that do not tell their rank, cannot be compared. Ranks that run different parts of a
    model (pipeline stages) compile different graphs rightly.

Fix:
    Give every rank the same shapes (pad the last batch, `drop_last=True`), mark sizes that differ as dynamic
    before the first call, and keep whatever depends on the rank out of the compiled function::

        torch._dynamo.mark_dynamic(batch, 0)
        rank = dist.get_rank()          # outside: inside, `if rank == 0` makes two different graphs

    Where the process group exists, `torch._dynamo.config.enable_compiler_collectives = True` makes ranks agree on
    dynamic sizes. Give every machine the same caches (`torch.compiler.load_cache_artifacts`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from perfscope.analyzers.ops import spans_within
from perfscope.analyzers.ranks import named_ranks
from perfscope.analyzers.torch_compile.divergence import Compiled, Divergence, Side, divergences, side_of
from perfscope.analyzers.torch_compile.frames import compile_log_of, compile_spans, short_place, user_place, where_of
from perfscope.model.finding import AbstainError, Cell, Finding, Severity, Span
from perfscope.model.trace import Trace
from perfscope.model.units import format_ns

NEEDS = ()

MIN_WAIT_NS = 10**9
"""A second. The same compilation takes a few percent more or less on equal ranks: of ten seconds, tenths of one."""

HIGH_NS = 600 * 10**9
"""Ten minutes: the default timeout of a NCCL process group. Ranks that wait longer are ended."""

MAX_ROWS = 20

MOST_NAMED = 4
"""Ranks that are named one by one."""


def check(trace: Trace) -> Iterable[Finding]:
    """Nothing: one rank shows no divergence. Abstains where there is no log."""
    compile_log_of(trace)
    return ()


def compare(traces: Sequence[Trace]) -> Iterable[Finding]:
    """Yield one finding for each set of ranks that parts from the largest one."""
    logged = [trace for trace in traces if trace.compile_log is not None and trace.compile_log.compiles]
    if not logged:
        return
    sides = [side for trace in logged if (side := side_of(trace)) is not None]
    if len(sides) < 2:
        several = len(logged) > 1
        raise AbstainError("the logs do not tell their ranks" if several else "one rank: nothing to compare it with")
    twice = [rank for rank, count in Counter(side.rank for side in sides).items() if count > 1]
    if twice:
        raise AbstainError(f"several logs are of rank {min(twice)}: which of them belong together is not known")
    traces_of = {trace.source.rank: trace for trace in logged}
    for found in divergences(sides):
        if found.kind != "caches" or found.wait_ns >= MIN_WAIT_NS:
            yield replace(_finding(found), spans=tuple(_spans(found, traces_of)))


def _spans(found: Divergence, traces_of: Mapping[int | None, Trace]) -> Iterator[Span]:
    """When the first compilation that differs was worked on: on the ranks that part, then on the others."""
    for sides, one in ((found.others, found.here), (found.most, found.there)):
        at = next((place for place, each in enumerate(sides[0].compiles) if each is one), None)
        if one is None or at is None:
            continue
        for side in sides[:MOST_NAMED]:
            mine = side.compiles[at : at + 1]
            if [each.what for each in mine] == [one.what]:
                trace = traces_of[side.rank]
                held = spans_within(trace, compile_spans(trace, [each.source for each in mine]))
                yield from (replace(span, rank=side.rank) for span in held)


def _finding(found: Divergence) -> Finding:
    wait = found.wait_ns or None
    one = found.here or found.there
    place = user_place(one.source.place, one.source.stack) if one is not None else None
    title = f"{_ranks(found.others)} {_difference(found)}"
    if wait is not None:
        title += f"; ranks wait up to {format_ns(wait)} for it"
    return Finding(
        subject=_SUBJECTS[found.kind],
        title=title,
        severity=_severity(found, wait),
        basis="structural" if wait is None else "modelled",
        cost_ns=wait,
        where=where_of(place),
        ranks=tuple(sorted(side.rank for side in found.others)),
        evidence=tuple(_row(side, found) for side in (*found.others, *found.most)[:MAX_ROWS]),
        advice=_advice(found),
    )


_SUBJECTS = {
    "collectives": "ranks compile different collectives",
    "graphs": "ranks compile different graphs",
    "caches": "caches answer differently by rank",
}


def _severity(found: Divergence, wait: int | None) -> Severity:
    if found.kind == "collectives" or (wait is not None and wait >= HIGH_NS):
        return "high"
    return "medium" if found.kind == "graphs" else "low"


def _difference(found: Divergence) -> str:
    """Both sides of the first difference."""
    others = f"{_ranks(found.most)} {'do' if len(found.most) > 1 else 'does'}"
    if found.kind == "collectives":
        here, there = (name or "no more" for name in found.names)
        return f"{_calls(found.others)} {here} as collective {found.index + 1:,}, where {_ranks(found.most)} "\
            f"{_calls(found.most)} {there}{_in(found.here or found.there)}"  # fmt: skip
    if found.kind == "caches":
        return f"found {_cached(found.here)} in compilation {found.index + 1:,} ({_named(found.here)}), " \
            f"where {_ranks(found.most)} found {_cached(found.there)}"  # fmt: skip
    verb = "compile" if len(found.others) > 1 else "compiles"
    if found.here is None:
        return f"{verb} {_count(found.others)}, {_ranks(found.most)} {_count(found.most)}: the first one more is " \
            f"{_named(found.there)}{_why(found.there)}"  # fmt: skip
    if found.there is None:
        known = found.here is not None and found.here.what[:2] in {one.what[:2] for one in found.most[0].compiles}
        return f"{verb} {_named(found.here)}{' again' if known else ''} and {others} not{_why(found.here)}"
    return f"{verb} {_named(found.here)} as compilation {found.index + 1:,}, where {_ranks(found.most)} " \
        f"{'compile' if len(found.most) > 1 else 'compiles'} {_named(found.there)}{_why(found.here)}"  # fmt: skip


def _calls(sides: Sequence[Side]) -> str:
    return "call" if len(sides) > 1 else "calls"


def _count(sides: Sequence[Side]) -> str:
    count = len(sides[0].compiles)
    return f"{count:,} {'time' if count == 1 else 'times'}"


def _ranks(sides: Sequence[Side]) -> str:
    return named_ranks(sorted(side.rank for side in sides), MOST_NAMED)


def _named(one: Compiled | None) -> str:
    if one is None:
        return "nothing more"
    if one.eager:
        return f"no graph of {one.function} ({_at(one)})"
    ops = f", {one.source.graph_ops:,} ops" if one.source.graph_ops is not None else ""
    return f"{one.function} ({_at(one)}{ops})"


def _at(one: Compiled) -> str:
    return short_place(one.source.place) if one.source.place is not None else one.compile_id


def _in(one: Compiled | None) -> str:
    return "" if one is None else f" in {_named(one)}"


def _why(one: Compiled | None) -> str:
    return "" if one is None or one.why_again is None else f"; {one.why_again.splitlines()[0][:200]}"


def _cached(one: Compiled | None) -> str:
    return (
        "no cache" if one is None or not one.caches else ", ".join(f"{cache} {result}" for cache, result in one.caches)
    )


def _row(side: Side, found: Divergence) -> dict[str, Cell]:
    ours = side in found.others
    one = found.here if ours else found.there
    return {
        "rank": side.rank,
        "compiles": _named(one),
        "collective": found.names[0 if ours else 1],
        "ops_hash": None if one is None else one.ops,
        "caches": _cached(one),
        "recompiled_because": None if one is None else one.why_again,
        "compilations": len(side.compiles),
        "graph_breaks": len(side.breaks),
        "compile_ns": side.total_ns,
    }


def _advice(found: Divergence) -> str:
    if found.kind == "caches":
        return (
            "Give every machine the same caches: one rank's torch.compiler.save_cache_artifacts() in shared storage, "
            "torch.compiler.load_cache_artifacts() on all of them before the first compiled call."
        )
    one = found.here or found.there
    advice = "Keep what depends on the rank (dist.get_rank(), a flag, a path) out of the compiled function. "
    if one is not None and one.why_again is not None and "size" in one.why_again:
        advice = (
            "Give every rank the same sizes (drop_last=True, padding), or mark what differs before the first call: "
            "torch._dynamo.mark_dynamic(batch, 0); torch._dynamo.config.enable_compiler_collectives = True makes ranks "
            "agree on dynamic sizes. "
        )
    return advice + "Ranks that run different parts of a model (pipeline stages) differ rightly."
