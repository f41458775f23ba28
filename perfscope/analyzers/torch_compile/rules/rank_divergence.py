"""Ranks of one job compile different graphs, or a different number of times.

Example:
    Before::

        loader = DataLoader(data, batch_size=32)                    # the last batch differs between ranks

    After::

        loader = DataLoader(data, batch_size=32, drop_last=True)

Why it costs:
    A rank that compiles more often than the others keeps them waiting at the next collective, for seconds to
    minutes. If the graphs themselves differ, ranks may call different collectives, or the same ones in another order:
    the job hangs until the timeout of its process group. The cause is a value that differs between ranks and has a
    guard (a batch's size, a Python number, a flag, an object's identity), or a cache that holds a graph on only some
    machines.

How it is found:
    The logs of several ranks are compared, compilation by compilation in order of their start: function, line, whether
    the frame was compiled at all, and the ops of its graphs in order (without sizes and constants, which may differ by
    rank). The largest set of ranks that agree is the reference. Every other set is one finding with the first
    difference, both sides of it, and the failed guard, if any. Collectives in the graphs (`_c10d_functional`) come
    first, because a different order of them is the most severe difference. The order in which graphs ran is compared
    next, if the logs have it: wrap the steps and the first calls, which compile, in
    `with torch._inductor.debug.record_and_log_graph_execution_order():`, with `TORCHINDUCTOR_FORCE_DISABLE_CACHES=1`,
    because graphs from caches have no ids.
    If all ranks compiled the same graphs and only cache hits differ, a finding needs a difference of a second.

    The cost is modelled, once per run, and an upper bound: the time that one side spent on compilations that the other
    side lacks; for caches, the difference between the slowest and the fastest of these ranks.
    The rule abstains for a single rank, or if logs lack the rank. Ranks that run different parts of a model (pipeline
    stages) compile different graphs by design.

Fix:
    Give every rank the same shapes (pad the last batch, `drop_last=True`), mark sizes that differ as dynamic
    before the first call, and move code that depends on the rank out of the compiled function::

        torch._dynamo.mark_dynamic(batch, 0)
        rank = dist.get_rank()          # outside: inside, `if rank == 0` makes two different graphs

    If the process group exists, `torch._dynamo.config.enable_compiler_collectives = True` makes ranks agree on
    dynamic sizes. Give every machine the same caches (`torch.compiler.load_cache_artifacts`).
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.ops import spans_within
from perfscope.analyzers.ranks import named_ranks
from perfscope.analyzers.torch_compile.frames import (
    compile_log_of,
    compile_spans,
    plain_function,
    short_place,
    user_place,
    where_of,
)
from perfscope.model.finding import AbstainError, Cell, Finding, Scope, Span
from perfscope.model.severity import Severity
from perfscope.model.trace import Trace
from perfscope.model.units import format_ns

if TYPE_CHECKING:
    from perfscope.model.compile_log import Compile, Graph, LoggedRecompile

MIN_WAIT_NS = 10**9
"""Smallest wait, one second: the time of a compilation varies by a few percent between equal ranks."""

HIGH_NS = 600 * 10**9
"""Ten minutes: the default timeout of an NCCL process group, at which waiting ranks end."""

MAX_ROWS = 20

MOST_NAMED = 4
"""Maximum number of ranks that are named individually."""

_WORDS: dict[str, tuple[str, str, Severity]] = {
    "collectives": ("ranks compile different collectives", "call", "high"),
    "graphs": ("ranks compile different graphs", "compile", "medium"),
    "executions": ("ranks run their graphs in another order", "run", "medium"),
    "caches": ("caches answer differently by rank", "find", "low"),
}
"""By kind: subject, verb for other ranks, and severity while the wait is below ``HIGH_NS``."""

_OTHER: dict[Kind, str] = {
    "collectives": "other collectives",
    "graphs": "other graphs",
    "executions": "their graphs in another order",
    "caches": "other caches",
}

COLLECTIVES = ("_c10d_functional.", "c10d.", "c10d_functional.")
"""Namespaces of ops that all ranks of a group must call in the same order."""

_NOT_CALLED = ("wait_tensor",)

ItemT = TypeVar("ItemT")

Kind = Literal["collectives", "graphs", "executions", "caches"]

_KEYS: dict[Kind, Callable[[Side], tuple[Hashable, ...]]] = {
    "collectives": lambda side: side.collectives,
    "graphs": lambda side: tuple(compiled.what for compiled in side.compiles),
    "executions": lambda side: side.executed,
    "caches": lambda side: tuple(compiled.caches for compiled in side.compiles),
}
"""By kind, most serious first: the sequence that must be equal."""


def examined(trace: Trace) -> Scope:
    """Return an empty scope: a single rank shows no divergence."""
    return Scope(0, "compilations of two ranks")


def compared(traces: Sequence[Trace]) -> Scope:
    """Count the compilations of the compared ranks."""
    sides = [side for trace in traces if (side := side_of(trace)) is not None]
    count = sum(len(side.compiles) for side in sides)
    return Scope(count if len(sides) > 1 else 0, "compilations of two ranks")


def check(trace: Trace) -> Iterable[Finding]:
    """Return nothing: a single rank shows no divergence. Abstains without a log."""
    compile_log_of(trace)
    return ()


def compare(traces: Sequence[Trace]) -> Iterable[Finding]:
    """Yield one finding per set of ranks that differs from the largest set."""
    logged = [trace for trace in traces if trace.compile_log is not None and trace.compile_log.compiles]
    if not logged:
        return
    sides = [side for trace in logged if (side := side_of(trace)) is not None]
    if len(sides) < 2:
        several = len(logged) > 1
        raise AbstainError("the logs lack their ranks" if several else "one rank: nothing to compare it with")
    twice = [rank for rank, count in Counter(side.rank for side in sides).items() if count > 1]
    if twice:
        raise AbstainError(f"several logs are of rank {min(twice)}, so it is unknown which logs belong together")
    traces_of = {trace.source.rank: trace for trace in logged}
    for divergence in divergences(sides):
        if divergence.kind != "caches" or divergence.wait_ns >= MIN_WAIT_NS:
            yield replace(_finding(divergence), spans=tuple(_spans(divergence, traces_of)))


def _spans(divergence: Divergence, traces_of: Mapping[int | None, Trace]) -> Iterator[Span]:
    """Yield the times of the first different compilation: on the deviating ranks, followed by the others."""
    for sides, compiled in ((divergence.others, divergence.here), (divergence.most, divergence.there)):
        index = next((index for index, each in enumerate(sides[0].compiles) if each is compiled), None)
        if compiled is None or index is None:
            continue
        for side in sides[:MOST_NAMED]:
            mine = side.compiles[index : index + 1]
            if [each.what for each in mine] == [compiled.what]:
                trace = traces_of[side.rank]
                spans = spans_within(trace, compile_spans(trace, [each.source for each in mine]))
                yield from (replace(span, rank=side.rank) for span in spans)


def _finding(divergence: Divergence) -> Finding:
    wait = divergence.wait_ns or None
    compiled = divergence.here or divergence.there
    code_line = user_place(compiled.source.place, compiled.source.stack) if compiled is not None else None
    others = _ranks(divergence.others)
    subject, verb, severity = _WORDS[divergence.kind]
    if divergence.kind == "executions" and any(
        compiled is not None and compiled.collectives for compiled in (divergence.here, divergence.there)
    ):
        severity = "high"  # the order of these graphs' collectives differs too
    title = f"{others} {_calls(divergence.others, verb)} {_OTHER[divergence.kind]} than the rest"
    if wait is not None:
        title += f": ranks wait up to {format_ns(wait)}"
    return Finding(
        subject=subject,
        title=title,
        detail=f"{others.capitalize()} {_difference(divergence)}.",
        severity="high" if wait is not None and wait >= HIGH_NS else severity,
        basis="structural" if wait is None else "modelled",
        cost_ns=wait,
        where=where_of(code_line),
        ranks=tuple(sorted(side.rank for side in divergence.others)),
        evidence=tuple(_row(side, divergence) for side in (*divergence.others, *divergence.most)[:MAX_ROWS]),
        advice=_advice(divergence),
    )


def _difference(divergence: Divergence) -> str:
    """Return both sides of the first difference."""
    here, there, most = divergence.here, divergence.there, divergence.most
    others = f"{_ranks(most)} {'do' if len(most) > 1 else 'does'}"
    if divergence.kind == "collectives":
        here_name, there_name = (name or "no more" for name in divergence.names)
        return (
            f"{_calls(divergence.others)} {here_name} as collective {divergence.index + 1:,}, where {_ranks(most)} "
            f"{_calls(most)} {there_name}{f' in {_named(here or there)}' if here or there else ''}"
        )
    if divergence.kind == "caches":
        return (
            f"found {_cached(here)} in compilation {divergence.index + 1:,} ({_named(here)}), "
            f"where {_ranks(most)} found {_cached(there)}"
        )
    if divergence.kind == "executions":
        return (
            f"{_calls(divergence.others, 'run')} {_named(here)} as call {divergence.index + 1:,}, "
            f"where {_ranks(most)} {_calls(most, 'run')} {_named(there)}"
        )
    verb = _calls(divergence.others, "compile")
    if here is None:
        return (
            f"{verb} {_count(divergence.others)}, {_ranks(most)} {_count(most)}: the first one more is "
            f"{_named(there)}{_why(there)}"
        )
    if there is None:
        known = here.what[:2] in {compiled.what[:2] for compiled in most[0].compiles}
        return f"{verb} {_named(here)}{' again' if known else ''} and {others} not{_why(here)}"
    return (
        f"{verb} {_named(here)} as compilation {divergence.index + 1:,}, where {_ranks(most)} "
        f"{_calls(most, 'compile')} {_named(there)}{_why(here)}"
    )


def _calls(sides: Sequence[Side], verb: str = "call") -> str:
    return verb if len(sides) > 1 else f"{verb}s"


def _count(sides: Sequence[Side]) -> str:
    count = len(sides[0].compiles)
    return f"{count:,} {'time' if count == 1 else 'times'}"


def _ranks(sides: Sequence[Side]) -> str:
    return named_ranks(sorted(side.rank for side in sides), MOST_NAMED)


def _named(compiled: Compiled | None) -> str:
    if compiled is None:
        return "nothing more"
    source = compiled.source
    place = short_place(source.place) if source.place is not None else source.compile_id
    if compiled.eager:
        return f"no graph of {compiled.function} ({place})"
    ops = f", {source.graph_ops:,} ops" if source.graph_ops is not None else ""
    return f"{compiled.function} ({place}{ops})"


def _why(compiled: Compiled | None) -> str:
    return "" if compiled is None or compiled.why_again is None else f"; {compiled.why_again.splitlines()[0][:200]}"


def _cached(compiled: Compiled | None) -> str:
    return (
        "no cache"
        if compiled is None or not compiled.caches
        else ", ".join(f"{cache} {result}" for cache, result in compiled.caches)
    )


def _row(side: Side, divergence: Divergence) -> dict[str, Cell]:
    ours = side in divergence.others
    compiled = divergence.here if ours else divergence.there
    return {
        "rank": side.rank,
        "compiles": _named(compiled),
        "collective": divergence.names[0 if ours else 1],
        "ops_hash": None if compiled is None else compiled.ops,
        "caches": _cached(compiled),
        "recompiled_because": None if compiled is None else compiled.why_again,
        "compilations": len(side.compiles),
        "graph_breaks": len(side.breaks),
        "compile_ns": side.total_ns,
    }


def _advice(divergence: Divergence) -> str:
    if divergence.kind == "caches":
        return (
            "Give every machine the same caches: one rank's torch.compiler.save_cache_artifacts() in shared storage. "
            "Call torch.compiler.load_cache_artifacts() on all of them before the first compiled call."
        )
    compiled = divergence.here or divergence.there
    advice = "Keep what depends on the rank (dist.get_rank(), a flag, a path) out of the compiled function. "
    if compiled is not None and compiled.why_again is not None and "size" in compiled.why_again:
        advice = (
            "Give every rank the same sizes (drop_last=True, padding), or mark what differs as dynamic. Before the "
            "first call: torch._dynamo.mark_dynamic(batch, 0); torch._dynamo.config.enable_compiler_collectives = "
            "True makes ranks "
            "agree on dynamic sizes. "
        )
    return advice + "Ranks that run different parts of a model (pipeline stages) differ by design."


# Compilations of each rank of a job, in an order that can be compared.


class Compiled(Struct, frozen=True, kw_only=True):
    """One compilation in the form that is compared between ranks."""

    function: str
    line: int | None
    """First line of the frame. Paths may differ between machines and are ignored."""
    ops: str
    """Hash of the ops of its graphs, in order; ``'-'`` if no graph was logged."""
    collectives: tuple[str, ...]
    """Collectives of its graphs, in order."""
    eager: bool
    """Whether the frame was left in eager mode."""
    caches: tuple[tuple[str, str], ...]
    total_ns: int
    source: Compile
    why_again: str | None
    """The guard that failed, if it was compiled before."""

    @property
    def what(self) -> tuple[str, int | None, bool, str]:
        """Values that must be equal on all ranks: function, line, whether it is compiled, ops."""
        return (self.function, self.line, self.eager, self.ops)


class Side(Struct, frozen=True, kw_only=True):
    """Compilations of one rank."""

    rank: int
    compiles: tuple[Compiled, ...]
    """In order of begin."""
    breaks: tuple[tuple[str, str | None, int | None], ...]
    """Graph breaks: id or reason, function, line."""
    total_ns: int
    executed: tuple[int | None, ...] = ()
    """Numbers of the compilations whose graphs ran, in order, if recorded; ``None`` for graphs that are not in the log.
    """

    @property
    def collectives(self) -> tuple[str, ...]:
        """Collectives of all graphs, in order."""
        return tuple(name for compiled in self.compiles for name in compiled.collectives)


def side_of(trace: Trace) -> Side | None:
    """Return the compilations of a rank; ``None`` without a log of a known rank."""
    from perfscope.analyzers.torch_compile.phases import compile_times

    log, rank = trace.compile_log, trace.source.rank
    if log is None or rank is None:
        return None
    graphs: dict[str, list[Graph]] = defaultdict(list)
    for graph in log.graphs:
        graphs[graph.compile_id].append(graph)
    again: dict[str, list[LoggedRecompile]] = defaultdict(list)
    for recompile in log.recompiles:
        again[recompile.compile_id].append(recompile)
    times = trace.fact(compile_times)
    compiles = []
    for compile_time in times.compiles:
        key = compile_time.compile.compile_id
        why = next((reason for recompile in again[key] for reason in recompile.reasons), None)
        # an id reused after torch._dynamo.reset() has all its graphs at its first compilation
        compiles.append(_compiled(compile_time.compile, graphs.pop(key, []), compile_time.total_ns, why))
    compiles.sort(key=lambda compiled: compiled.source.start_ns or 0)
    number = {compiled.source.compile_id: index for index, compiled in enumerate(compiles)}
    return Side(
        executed=tuple(number.get(key) for key in log.executed),
        rank=rank,
        compiles=tuple(compiles),
        breaks=tuple(
            (
                graph_break.doc_id or graph_break.reason,
                graph_break.place.function if graph_break.place else None,
                graph_break.place.line if graph_break.place else None,
            )
            for graph_break in log.breaks
        ),
        total_ns=times.total_ns,
    )


def _compiled(compilation: Compile, graphs: list[Graph], total_ns: int, why: str | None) -> Compiled:
    nodes = [(graph.direction, node) for graph in graphs for node in graph.nodes]
    ops = "".join(f"{direction} {node.op}\n" for direction, node in nodes)
    return Compiled(
        function=plain_function(compilation.function),
        line=compilation.place.line if compilation.place else None,
        ops=hashlib.sha256(ops.encode()).hexdigest()[:16] if ops else "-",
        collectives=tuple(
            node.op
            for _, node in nodes
            if node.op.startswith(COLLECTIVES) and not any(w in node.op for w in _NOT_CALLED)
        ),
        eager=compilation.has_code is False,
        caches=tuple(sorted(compilation.caches.items())),
        total_ns=total_ns,
        source=compilation,
        why_again=why,
    )


class Divergence(Struct, frozen=True, kw_only=True):
    """Ranks that differ from the others, with the first difference."""

    kind: Kind
    others: tuple[Side, ...]
    """The deviating ranks."""
    most: tuple[Side, ...]
    """The largest set of ranks that agree; of equally large sets, the one with the lowest rank."""
    index: int
    """Index of the first different compilation or collective."""
    here: Compiled | None
    """Compilation of ``others`` at that index; ``None`` if they have none."""
    there: Compiled | None
    """Compilation of ``most`` at that index."""
    names: tuple[str | None, str | None] = (None, None)
    """The different collectives of ``others`` and ``most``."""

    @property
    def wait_ns(self) -> int:
        """Longest wait of one of these ranks for another's compiling.

        For other graphs, the difference in time of the compilations that the other side lacks; for caches, the
        difference in total time.
        """
        if self.kind == "caches":
            totals = [side.total_ns for side in (*self.others, *self.most)]
            return max(totals) - min(totals)
        return max(abs(_alone_ns(one, other) - _alone_ns(other, one)) for one in self.others for other in self.most[:1])


def _alone_ns(side: Side, other: Side) -> int:
    """Return the time of the compilations of ``side`` that ``other`` lacks."""
    theirs = Counter(compiled.what for compiled in other.compiles)
    spent = 0
    for compiled in side.compiles:
        if theirs[compiled.what]:
            theirs[compiled.what] -= 1
        else:
            spent += compiled.total_ns
    return spent


def divergences(sides: Sequence[Side]) -> Iterator[Divergence]:
    """Yield each set of ranks that differs from the largest set, with its most serious kind of difference."""
    left = list(sides)
    for kind, key in _KEYS.items():
        if kind == "executions" and not all(side.executed for side in left):
            continue
        groups: dict[Hashable, list[Side]] = defaultdict(list)
        for side in left:
            groups[key(side)].append(side)
        left, *others = sorted(groups.values(), key=lambda group: (-len(group), min(side.rank for side in group)))
        for group in others:
            yield _divergence(kind, tuple(left), tuple(group))


def _divergence(kind: Kind, most: tuple[Side, ...], others: tuple[Side, ...]) -> Divergence:
    mine, their = _KEYS[kind](others[0]), _KEYS[kind](most[0])
    index = next(
        (index for index, pair in enumerate(zip(mine, their, strict=False)) if pair[0] != pair[1]),
        min(len(mine), len(their)),
    )
    collectives = kind == "collectives"
    get = _holder if collectives else _ran if kind == "executions" else _compiled_at
    return Divergence(
        kind=kind,
        others=others,
        most=most,
        index=index,
        here=get(others[0], index),
        there=get(most[0], index),
        names=(_get(others[0].collectives, index), _get(most[0].collectives, index)) if collectives else (None, None),
    )


def _get(items: Sequence[ItemT], index: int) -> ItemT | None:
    return items[index] if index < len(items) else None


def _compiled_at(side: Side, index: int) -> Compiled | None:
    return _get(side.compiles, index)


def _ran(side: Side, index: int) -> Compiled | None:
    number = _get(side.executed, index)
    return None if number is None else side.compiles[number]


def _holder(side: Side, index: int) -> Compiled | None:
    """Return the compilation whose graphs contain the collective with that number."""
    for compiled in side.compiles:
        if index < len(compiled.collectives):
            return compiled
        index -= len(compiled.collectives)
    return None
