"""Sentences of a comparison's reports: verdicts, titles, changes. The numbers are in the tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, TypeAlias

from perfscope.analyzers.compare import LEVEL_WORDS, LIKELY, NEUTRAL, NOTED, OTHER_VENDOR, Level
from perfscope.dashboards.report.blocks import Effect
from perfscope.dashboards.report.renderers.values import (
    amount,
    amount_text,
    effect_text,
    number,
    number_text,
    percent,
    signed_ns,
)
from perfscope.model.documents.causes import cause_words
from perfscope.model.documents.comparison import CausePart
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import NAME_LIMIT, TEXT_LIMIT, sanitize

if TYPE_CHECKING:
    from perfscope.analyzers.compare import Comparison, MetricResult
    from perfscope.dashboards.report.blocks import Tone, Value
    from perfscope.model.documents.compared_findings import Carried
    from perfscope.model.documents.compared_programs import ProgramAmount, ProgramDifference, ProgramRow
    from perfscope.model.documents.comparison import (
        Cause,
        Document,
        FindingChange,
        Kernel,
        Method,
        Metric,
        Part,
        Side,
        Step,
    )

    Judged: TypeAlias = MetricResult | Metric
    """A metric with its verdict, as computed or as read back from a document."""

NO_VERDICT = "not judged"
"""Verdict on a time of single captures: it is shown, but no conclusion is drawn from it."""

SINGLE, SETS = "single captures", "sets of runs"

NOTHING_EXACT = "no exact metric on both sides"

MOST_NOTED = 3
"""Most counts that are named as notes."""

MOST_CARRIED = 2
"""Most findings named as parts of a change."""

IDENTICAL = "identical: same fingerprint"
"""Remark on compiled programs with the same ops, shapes and schedule, whatever their names."""

BY_TIME = "by measured time alone"
"""Remark on a finding that appeared or disappeared although no counted metric changed."""

MOST_NAMED = 4
"""Most ops of a fusion that are named; the first ops identify a longer chain."""

MOST_OF_A_PLACE = 3
"""Most changes that are named for a place; later ones usually follow from the first."""

MOST_WRITTEN = 6
"""Most lines of a program's source that are named."""

COMMIT_DIGITS = 12

TONES: dict[str, Tone] = {
    "regression": "worse",
    "regression likely": "worse",
    "improvement": "better",
    "improvement likely": "better",
    "inconclusive": "open",
    "differs": "open",
    "new": "worse",
    "worse": "worse",
    "fixed": "better",
    "better": "better",
}
"""Tone of each verdict and of each change of a finding."""

KIND_WORDS = {
    "compute": "compute",
    "communication": "exposed communication",
    "copy": "exposed copies",
    "idle": "idle",
    "host": "host",
}

FINDING_WORDS = {
    "new": "new",
    "worse": "worse",
    "first looked at": "not evaluated in base",
    "fixed": "fixed",
    "better": "better",
    "no longer looked at": "not evaluated in head",
    "unchanged": "unchanged",
}

_EXPECTED = frozenset({None, *(LEVEL_WORDS[level] for level in (Level.SAME, Level.RENAMED, Level.MOVED))})
"""Ways of matching that need no remark, because the work is the same."""


# Metrics and the verdict.

_BLOCKED = ("blocking collectives per run", "planned blocking collectives per step")


def headline(document: Document) -> str:
    """The verdict and what it rests on, one line."""
    return f"{document.headline}: {summary_line(document)}"


def summary_line(comparison: Document | Comparison) -> str:
    """Summarise a comparison in one line: a likely change of step time, then worse or better metrics, then notes."""
    metrics = comparison.metrics
    single = next((metric for metric in metrics if metric.known in (SINGLE, SETS) and not metric.gates), None)
    texts = list(_judged_words(metrics))
    if single is None:
        return "; ".join(texts or [NOTHING_EXACT])
    moved = any(metric.gates and metric.verdict in ("regression", "improvement") for metric in metrics)
    carried = ", ".join(map(carried_words, comparison.carried[:MOST_CARRIED]))
    time = _single_words(single, judged=comparison.likely is not None or not moved)
    if carried:
        time += f", including {carried}" if comparison.likely else f"; {carried}, by measured time alone"
    if moved and not comparison.likely:
        return "; ".join([*texts, time])
    return "; ".join([time, *texts, *_settle(single, comparison.settle)])


def metrics_line(metrics: Sequence[Judged]) -> str:
    """Summarise judged metrics in one line."""
    return "; ".join(list(_judged_words(metrics)) or [NOTHING_EXACT])


def _judged_words(metrics: Sequence[Judged]) -> Iterator[str]:
    """Yield the judged time with its interval, worse metrics, better metrics, else equal ones; then notes."""
    timed = next((metric for metric in metrics if metric.gates and metric.low is not None), None)
    if timed is not None:  # the headline may be about another metric
        is_open = timed.verdict in ("no change", "inconclusive")
        yield _interval_words(timed) + (f": {timed.verdict}" if is_open else "")
    judged = [metric for metric in metrics if metric.gates and metric.unit != "text" and metric is not timed]
    for word, grown in (("regression", "worse"), ("improvement", "better")):
        changed = [metric for metric in judged if metric.verdict == word]
        if changed:
            more = f", {len(changed)} {grown} in all" if len(changed) > 1 else ""
            yield f"{grown}: {sanitize(changed[0].name)} {_sides(changed[0])}{more}"
    moved = any(metric.verdict in ("regression", "improvement") for metric in judged)
    same = sum(metric.verdict == "no change" for metric in judged)
    if same and not moved:
        yield f"{same} exact metric{'' if same == 1 else 's'} the same"
    prints = [metric for metric in metrics if metric.unit == "text"]
    if prints and not moved and all(metric.base == metric.head is not None for metric in prints):
        yield IDENTICAL
    noted = [f"{sanitize(metric.name)} {_sides(metric)}" for metric in metrics if verdict(metric) == "noted"]
    if noted:
        yield f"noted: {', '.join(noted[:MOST_NOTED])}"


def _single_words(metric: Judged, *, judged: bool) -> str:
    """``step time 323 ms → 523 ms, +62.0% (one launch each)``; ``judged``: the verdict is here or in the headline."""
    if metric.base is None or metric.head is None:
        return "time not judged (one launch each)"
    base, head = side_text(metric, "base"), side_text(metric, "head")
    change = "" if metric.effect is None else f", {percent(metric.effect)}"
    launches = "one launch each" if metric.known == SINGLE else f"{metric.pairs:,} launches each"
    how = launches if judged else f"{NO_VERDICT}: {launches}"
    return f"{sanitize(metric.name)} {base} → {head}{change} ({how})"


def _settle(metric: Judged, settle: str) -> Iterator[str]:
    """Yield the command that would settle a change of step time seen with one launch per side, if there is one."""
    if settle and metric.effect is not None and abs(metric.effect) >= (metric.least or 0.0):
        yield f"settle it with `{sanitize(settle, TEXT_LIMIT)}`"


def carried_words(carried: Carried) -> str:
    """``+200 ms other host work in `tokenize`, train.py:18``."""
    what = cause_words(carried.cause, on_host=carried.on_host) if carried.cause else sanitize(carried.rule)
    where = f" in `{sanitize(carried.function, NAME_LIMIT)}`" if carried.function else ""
    place = f"{',' if where else ' at'} {sanitize(carried.place)}" if carried.place else ""
    return f"{signed_ns(carried.delta_ns)} {what.removeprefix('idle: ')}{where}{place}"


def _interval_words(metric: Judged) -> str:
    if metric.effect is None or metric.low is None or metric.high is None:
        return sanitize(metric.name)
    level = 0.95 if metric.level is None else metric.level
    ends = f"{percent(metric.low)} … {percent(metric.high)}"
    return f"{sanitize(metric.name)} {percent(metric.effect)} ({100 * level:.3g}% CI {ends})"


def _sides(metric: Judged) -> str:
    base, head = side_text(metric, "base"), side_text(metric, "head")
    return f"{base} → {head}" if base != head else change_text(metric)


def side_value(metric: Judged, side: str) -> Value:
    """A metric's value on a side, in its unit."""
    value = metric.base if side == "base" else metric.head
    return value if value is None or isinstance(value, str) else amount(metric.unit, value)


def side_text(metric: Judged, side: str) -> str:
    """A metric's value on a side; ``-`` where it has none."""
    value = side_value(metric, side)
    return sanitize(value) if isinstance(value, str) else number_text(value, "count") or "-"  # type: ignore[arg-type]


def change_value(metric: Judged) -> Effect | str:
    """The change, with its interval if it was judged; ``''`` for texts and unchanged values."""
    if metric.base == metric.head:
        return ""
    if metric.effect is None:
        return "" if isinstance(metric.base, str) else "from none"
    if NO_VERDICT in verdict(metric):  # its interval is too wide to mean anything
        return Effect(metric.effect)
    return Effect(metric.effect, metric.low, metric.high, metric.least or 0.0, TONES.get(metric.verdict, "plain"))


def change_text(metric: Judged) -> str:
    """``+3.0% [+2.0%, +4.0%]``."""
    value = change_value(metric)
    return value if isinstance(value, str) else effect_text(value)


def verdict(metric: Judged) -> str:
    """The verdict in words; single captures have no verdict."""
    if NEUTRAL in metric.remarks:
        return "differs"
    if {NOTED, OTHER_VENDOR} & set(metric.remarks):
        return "noted"
    if metric.unit == "text":
        return "the same" if metric.base == metric.head else "differs"
    if LIKELY in metric.remarks:
        return f"{metric.verdict} likely"
    if metric.gates or metric.known != SINGLE:
        return metric.verdict
    return NO_VERDICT if metric.verdict == "inconclusive" else f"{NO_VERDICT} (looks like {metric.verdict})"


def metric_rows(document: Document) -> tuple[list[Metric], list[Metric]]:
    """Return (metrics with a verdict or change, unchanged metrics): time first, then worse, better, open, others."""
    order = {"regression": 0, "improvement": 1, "inconclusive": 2}
    timed = [metric for metric in document.metrics if _is_timed(metric)]
    rest = [metric for metric in document.metrics if not _is_timed(metric)]
    moved = [metric for metric in rest if metric.verdict != "no change"]
    same = [metric for metric in rest if metric.verdict == "no change"]
    return [*timed, *sorted(moved, key=lambda metric: order[metric.verdict])], same


def _is_timed(metric: Metric) -> bool:
    return metric.unit == "ns" and metric.known != "exact"


def is_quiet(document: Document) -> bool:
    """Whether there is nothing to report: every verdict is "no change", and no finding, count or gate differs."""
    return (
        document.headline in ("no change", "not judged")
        and not document.failed
        and all(
            metric.verdict == "no change" or verdict(metric) == "differs" or not metric.gates
            for metric in document.metrics
        )
        and not any(cause.exact for cause in document.causes)
        and not any(finding.change != "unchanged" and not finding.by_time for finding in document.findings)
        and not changed_kernels(document.kernels)
        and all(program.identical for program in document.programs)
    )


# Titles of the sides.


def title(document: Document) -> str:
    """``base → head``: commits where they are known, else their paths."""
    return " → ".join(side_title(document, name) for name in ("base", "head"))


def side_title(document: Document, name: str) -> str:
    """``main@1a2b3c4d5e6f``, else the path."""
    method = document.method
    ref, commit = (method.base_ref, method.base_commit) if name == "base" else (method.head_ref, method.head_commit)
    if commit:
        return f"{sanitize(ref)}@{sanitize(commit[:COMMIT_DIGITS])}" if ref else sanitize(commit[:COMMIT_DIGITS])
    return sanitize(ref) if ref else _paths(document.base if name == "base" else document.head)


def _paths(side: Side) -> str:
    if not side.paths:
        return "-"
    more = f" and {len(side.paths) - 1} more" if len(side.paths) > 1 else ""
    return f"{sanitize(side.paths[0])}{more}"


def short_titles(document: Document) -> tuple[str, str]:
    """Titles of both sides, paths by their last name if these differ: for a line in which all names are long."""
    base, head = side_title(document, "base"), side_title(document, "head")
    short = [PurePath(name).name or name for name in (base, head)]
    return (short[0], short[1]) if short[0] != short[1] else (base, head)


# Changes at a place, and the parts of the step.


def cause_lines(cause: Cause, per: str = "step") -> tuple[list[str], int]:
    """Return (changes at a place, most telling first; number of further changes); ``per``: what the counts refer to."""
    lines = []
    for finding in cause.findings:
        text = f"finding {FINDING_WORDS[finding.change]}: {sanitize(finding.rule)}: {sanitize(finding.subject)}"
        lines.append(text + (f" ({BY_TIME})" if finding.by_time else ""))
    for metric in cause.metrics:
        base, head = ("-" if value is None else amount_text(metric.unit, value) for value in (metric.base, metric.head))
        lines.append(f"{sanitize(metric.name)}: {base} → {head}")
    parts = [part for part in cause.parts if part.counted] or list(cause.parts)
    lines += [part_words(part, per) for part in parts]
    return lines[:MOST_OF_A_PLACE], max(0, len(lines) - MOST_OF_A_PLACE)


def part_words(part: CausePart, per: str = "step") -> str:
    """``new: aten::item, 1 per step`` or ``fused: aten::add, aten::mul → kernel, 3 → 1 per step``."""
    others = max(len(part.base_names), len(part.head_names)) - 1
    name = sanitize(part.name) + (f" and {others} like it" if others > 0 else "")
    phase = f" ({sanitize(part.phase)})" if part.phase else ""
    base, head = part.base_calls or 0, part.head_calls or 0
    if part.status == "new":
        return f"new: {name}{phase}" + (f", {number(head)} per {per}" if head else "")
    if part.status == "gone":
        return f"gone: {name}{phase}" + (f", was {number(base)} per {per}" if base else "")
    status = sanitize(part.status)
    if part.counted and part.matched == LEVEL_WORDS[Level.FUSED]:
        sides = [_names(names) for names in (part.base_names, part.head_names)]
        return f"{status}{phase}: {sides[0]} → {sides[1]}, {number(base)} → {number(head)} per {per}"
    if part.counted:
        level = "" if part.matched in _EXPECTED else f" ({sanitize(part.matched or '')})"
        return f"{status}: {name}{phase}, {number(base)} → {number(head)} per {per}{level}"
    return f"{status}: {name}{phase}, {format_ns(part.base_ns or 0)} → {format_ns(part.head_ns or 0)}"


def _names(names: Sequence[str]) -> str:
    """The first few of several names."""
    texts = list(dict.fromkeys(sanitize(name, NAME_LIMIT) for name in names))
    more = f" and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else ""
    return ", ".join(texts[:MOST_NAMED]) + more


def cause_part(part: Part) -> CausePart:
    """Turn a part of the step into its record in a cause."""
    keys = part.head.keys or part.base.keys
    first = next((key for key in keys if key.file), keys[0] if keys else None)
    return CausePart(
        status=part.status,
        name=part.name,
        phase="" if first is None else first.phase,
        base_calls=part.base.calls,
        head_calls=part.head.calls,
        delta_ns=part.delta_ns,
        base_ns=part.base.ns,
        head_ns=part.head.ns,
        matched=part.matched,
        counted=part.countable and part.base.calls != part.head.calls,
        base_names=tuple(key.name for key in part.base.keys),
        head_names=tuple(key.name for key in part.head.keys),
    )


def kinds(step: Step) -> tuple[tuple[str, int, int], ...]:
    """(what, base, head) in ns by kind."""
    known = [*KIND_WORDS, *step.by_kind]
    return tuple(
        (KIND_WORDS.get(kind, kind), whole.base_ns, whole.head_ns)
        for kind, whole in sorted(step.by_kind.items(), key=lambda item: known.index(item[0]))
    )


# Findings and kernels.


def finding_counts(findings: Sequence[FindingChange]) -> str:
    """``1 new, 2 fixed, 3 unchanged``; ``none`` without findings."""
    counts = {word: sum(finding.change == key for finding in findings) for key, word in FINDING_WORDS.items()}
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count) or "none"


def finding_cost(change: FindingChange) -> str:
    """``costs up to 5.10 ms per step``, with the earlier cost; ``''`` if no time is known."""
    before, after = (None if side is None else side.cost_ns_per_step for side in (change.base, change.head))
    if change.head is None:
        return "" if before is None else f"cost up to {format_ns(before)} per step"
    if after is None:
        return ""
    was = "" if before is None else f", was {format_ns(before)}"
    return f"costs up to {format_ns(after)} per step{was}"


def changed_kernels(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Kernels that changed beyond chance; kernels that cannot be judged are left out."""
    return [kernel for kernel in kernels if kernel.verdict in ("regression", "improvement")]


def kernel_word(kernel: Kernel) -> str:
    """``slower``, ``faster``, ``new``, ``gone``, or its verdict."""
    if kernel.kind != "changed":
        return kernel.kind
    return {"regression": "slower", "improvement": "faster"}.get(kernel.verdict, kernel.verdict)


# Compiled programs.

_SHORT = {
    "bytes moved per run": "moved",
    "FLOPs per run": "FLOPs",
    "instructions launched per run": "launches",
    "recomputed FLOPs per run": "FLOPs recomputed",
    "collective bytes per run": "sent to other devices",
    "peak memory of the program": "at the peak",
    "bytes of planned kernels per step": "moved",
    "FLOPs of planned kernels per step": "FLOPs",
    "planned kernels per step": "kernels",
    "planned graph breaks": "graph breaks",
    "planned peak memory of a step": "at the peak",
    "planned collectives per step": "collectives",
    "planned collective bytes per step": "sent to other devices",
    "planned blocking collectives per step": "that block",
    "planned blocking collective bytes per step": "of what blocks",
}
"""Words after the amounts of a row."""


def program_title(program: ProgramDifference) -> str:
    """``3 changes by instruction``."""
    if program.identical:
        return f"{IDENTICAL} ({sanitize(program.head_fingerprint)})"
    count = len(program.rows) + program.other_rows.count
    if program.base_fingerprint == program.head_fingerprint:
        return "same fingerprint, another plan of its memory"
    if not count:
        return "the same launches in another order"
    return f"{count:,} change{'' if count == 1 else 's'} by instruction; each metric's parts sum to its change"


def row_title(row: ProgramRow) -> str:
    """``moved out of a fusion: reduce_sum, mul (backward), 4 times; shows at model.py:16``."""
    phase = f" ({sanitize(row.phase)})" if row.phase else ""
    times = f", {row.count:,} times" if row.count > 1 else ""
    elsewhere = f"; shows at {sanitize(row.place)}" if row.source and row.place and row.place != row.source else ""
    return f"{sanitize(row.change)}: {sanitize(row.what)}{phase}{times}{elsewhere}"


def row_amounts(amounts: Sequence[ProgramAmount]) -> str:
    """``+160 MiB moved, +6 launches``."""
    texts = []
    for part in amounts:
        grown = part.head - part.base
        size = amount_text(part.unit, abs(grown))
        texts.append(f"{'+' if grown > 0 else '-'}{size} {_SHORT.get(part.name, sanitize(part.name))}".rstrip())
    return ", ".join(texts)


def written_line(program: ProgramDifference) -> str:
    """``train.py:16: ...``: how the program's source differs; ``''`` if it is equal or unknown."""
    if not program.written:
        return ""
    places: dict[str, list[str]] = {}
    for line in program.written:
        times = f" ({line.count:,} times)" if line.count > 1 else ""
        places.setdefault(sanitize(line.place), []).append(f"{sanitize(line.change)} {sanitize(line.what)}{times}")
    sentences = [f"{location}: {', '.join(what[:MOST_WRITTEN])}" for location, what in places.items()]
    more = f"; and {len(sentences) - MOST_WRITTEN:,} more lines" if len(sentences) > MOST_WRITTEN else ""
    return f"in the program as written: {'; '.join(sentences[:MOST_WRITTEN])}{more}"


def modelled_line(program: ProgramDifference) -> str:
    """Modelled time of a run on both sides; ``''`` if it is unknown."""
    base, head = program.base_modelled, program.head_modelled
    if base is None or head is None:
        return ""
    spans = " → ".join(f"{format_ns(span.low)} to {format_ns(span.high)}" for span in (base, head))
    return f"modelled time of a run: {spans}; nothing was measured"


def row_of_metric(document: Document, name: str) -> ProgramRow | None:
    """The first row of a program's metric that makes it worse; ``name`` is the metric's name in the document."""
    for program in document.programs:
        plain = name.removeprefix(f"{program.name}: ")
        for row in program.rows:
            if any(amount.name == plain and amount.head > amount.base for amount in row.amounts):
                return row
            if plain in _BLOCKED and row.blocking:
                return row
    return None


# How the sides were compared, and what could not be compared.


def not_compared(document: Document) -> list[str]:
    """Metrics that could not be compared, one line per reason."""
    groups: dict[str, list[str]] = {}
    for metric in document.not_looked:
        sides = f"{' and '.join(metric.sides)}: " if metric.sides else ""
        groups.setdefault(f"{sides}{metric.reason}", []).append(sanitize(metric.name))
    return [f"{sanitize(', '.join(names), 300)}: {reason}" for reason, names in groups.items()]


def pair_words(method: Method) -> str:
    """``10 pairs of launches and 10 to confirm``."""
    confirming = f" and {method.confirming_pairs} to confirm" if method.confirming_pairs else ""
    return f"{method.pairs} pairs of launches{confirming}"


def method_lines(document: Document) -> list[str]:
    """Sentences on the method, one per line, without final stops."""
    method = document.method
    texts = [sanitize(method.kind)]
    if method.pairs:
        seed = f", order by seed {method.seed}" if method.seed is not None else ""
        texts = [f"{sanitize(method.kind)}: {pair_words(method)}{seed}"]
        texts.append("base and head of a time differ by the mean change within pairs, so drift of the machine cancels")
    if method.profiled:
        launches = "launch of each side was" if method.profiled == 1 else "launches of each side were"
        texts.append(f"{method.profiled} {launches} profiled, besides those that were timed")
    if method.estimator:
        texts.append(method.estimator)
    if method.least is not None:
        texts.append(f"changes of time below {method.least:.1%} are ignored")
    texts += method.remarks
    if method.command:
        texts.append(f"command: {sanitize(' '.join(method.command), 400)}")
    return texts


def environment(document: Document) -> list[tuple[str, str]]:
    """(name, value) pairs that describe the machine, devices first."""
    devices = dict.fromkeys((*document.base.devices, *document.head.devices))
    rows = [("device", ", ".join(devices))] if devices else []
    return [*rows, *document.method.environment.items()]
