"""The first difference between two runs, as text and Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.dashboards.report.blocks import Column, Listing, Report, Section, Table, Text, table
from perfscope.dashboards.report.renderers.markdown import escape, open_section, sections_markdown
from perfscope.dashboards.report.renderers.text import WIDTH, report_text
from perfscope.plugins.fingerprint.compare import kinds_of
from perfscope.plugins.fingerprint.result import Cause, Difference, Differing, FirstDifference, Place, Setting, Side

MEANINGS: dict[Cause, str] = {
    "arguments": "the same op on equal inputs with other arguments: the code, a setting, or a number from the host",
    "batch": "the batches differ in size: with --tolerance rounding gradients are compared",
    "buffers": "a buffer of the model has another value when the model is called, parameters and inputs are equal",
    "choice": "values that differ by rounding fell on different sides of a choice (argmax, sort, comparison)",
    "collective": "the result of a collective: another rank gave other values",
    "control flow": "another op at this place, after equal values: the code, a library or a condition on the host",
    "data": "values from outside of the recorded ops: data, its position, or a constant of the program",
    "gradients": "gradients differ before the optimizer steps",
    "op": "equal inputs, different outputs: this op computed something else (library, threads, algorithm, hardware)",
    "optimizer state": "the optimizer's own state differs: it was not restored, or another optimizer is in use",
    "order": "the data of another step: another order, or another position in the data",
    "random": "the random generator has another state: another seed, or a state that was not restored",
    "shape": "a value of another shape",
    "unseen write": "memory changed after an op wrote it, by no op: code outside of torch, or a fault of memory",
    "unwritten memory": "the op reads memory that nothing has written: its content is chance",
    "weights": "parameters differ when the model is called",
}


def render_text(document: FirstDifference, *, width: int = WIDTH, color: bool = False, verbose: bool = False) -> str:
    """The document for a terminal."""
    return report_text(report_of(document), width=width, color=color, verbose=verbose)


def render_markdown(document: FirstDifference) -> str:
    """The document as a comment on a pull request."""
    report = report_of(document)
    facts = "  \n".join(escape(fact) for fact in report.facts)
    lead = open_section(report.sections[0]) if report.sections else ""
    return f"### {escape(report.headline)}\n\n{facts}\n\n{lead}{sections_markdown(report.sections[1:])}"


def report_of(document: FirstDifference) -> Report:
    """The document as blocks."""
    return Report(headline=_headline(document), facts=tuple(_facts(document)), sections=tuple(_sections(document)))


def _headline(document: FirstDifference) -> str:
    first = document.first
    if first is None:
        how = (
            "are equal to the last bit" if document.tolerance == "exact" else "differ by no more than rounding explains"
        )
        counts = document.counts
        return f"A and B {how}: {counts.values:,} values of {counts.ops:,} ops in {counts.steps:,} steps"
    return f"A and B differ first in step {_steps(first)}{_rank(first, document)}: {_what(first)}"


def _steps(first: Difference) -> str:
    return str(first.step_a) if first.step_a == first.step_b else f"{first.step_a} of A, {first.step_b} of B"


def _rank(first: Difference, document: FirstDifference) -> str:
    return f", rank {first.rank_b}" if max(document.a.ranks, document.b.ranks) > 1 else ""


def _what(first: Difference) -> str:
    place = first.a or first.b
    if first.cause not in ("data", "order", "control flow") and _is_state(first):
        kinds = ", ".join(kinds_of([row.role.partition(",")[0] for row in first.values])[:4])
        return f"{kinds} at {_op(place)}" + (f" ({first.cause})" if first.cause not in kinds else "")
    if place is None:
        return first.cause
    if first.cause == "control flow":
        return f"{_op(first.a)} in A, {_op(first.b)} in B"
    words = {"data": "its data", "order": "its data", "random": "its random generator"}.get(first.cause)
    return f"{words} at {_op(place)}" if words else f"{_op(place)} ({first.cause})"


def _is_state(first: Difference) -> bool:
    place = first.a or first.b
    return place is not None and place.op.startswith("<")


def _op(place: Place | None) -> str:
    if place is None:
        return "the end of the step"
    name = place.op.strip("<>") if place.op.startswith("<") else f"`{place.op}`"
    where = f" at {place.line}" if place.line else ""
    module = f" in {place.module}" if place.module else ""
    return f"{name}{where}{module}{' (backward)' if place.phase == 'backward' else ''}"


def _facts(document: FirstDifference) -> Iterator[str]:
    for name, side in (("A", document.a), ("B", document.b)):
        yield f"{name} {side.source}: {_side(side)}"
    if document.first is not None:
        yield MEANINGS[document.first.cause]
    if document.mode == "gradients":
        yield "the sides divide a batch differently, so only gradients before each step of the optimizer are compared"
    if document.mode == "first rows":
        yield "the batches differ in size, so of values of another batch the first row is compared"
    if document.counts.unequal:
        yield f"{document.counts.unequal:,} of {document.counts.values:,} values differ within what rounding explains"


def _side(side: Side) -> str:
    shown = ", ".join(map(str, side.sampled[:6])) + (" ..." if len(side.sampled) > 6 else "")
    ranks = f", {side.ranks} ranks" if side.ranks > 1 else ""
    return f"{side.framework}, {side.steps:,} steps{ranks}, ops recorded in {shown or 'none'}"


def _sections(document: FirstDifference) -> Iterator[Section]:
    first = document.first
    if first is not None:
        blocks: list[Listing | Table | Text] = [Listing(items=tuple(_lines(first)), few=12)]
        if first.values:
            blocks.append(_values(first))
        yield Section(title="First difference", blocks=tuple(blocks))
    if len(document.ranks) > 1:
        yield Section(title="Ranks", summary=_ranks_summary(document), blocks=(_ranks(document),))
    if document.settings:
        columns: tuple[Column[Setting], ...] = (
            Column("setting", lambda row: row.name),
            Column("A", lambda row: row.a),
            Column("B", lambda row: row.b),
        )
        yield Section(title="Settings and versions that differ", blocks=(table(columns, document.settings, few=8),))
    if document.notes:
        yield Section(title="Notes", blocks=(Listing(items=document.notes, few=6),))


def _lines(first: Difference) -> Iterator[str]:
    if first.cause == "control flow":
        yield f"in A the op is {_op(first.a)}"
        yield f"in B the op is {_op(first.b)}"
    elif first.a is not None and first.b is not None:
        if _op(first.a) == _op(first.b):
            yield f"on both sides it is {_op(first.a)}"
        else:
            yield f"in A it is {_op(first.a)}"
            yield f"in B it is {_op(first.b)}"
        if first.cause == "arguments":
            yield f"arguments of A: {first.a.arguments}"
            yield f"arguments of B: {first.b.arguments}"
    if not first.recorded:
        yield (
            "the ops of this step were not recorded on both sides, its states were: record A again with "
            f"--steps {_again(first, first.step_a)}, B with --steps {_again(first, first.step_b)}"
        )
    elif first.last_equal_step is not None:
        yield (
            f"the ops of step {first.last_equal_step}, whose states were equal, were not recorded: the difference may "
            f"have begun there (--steps {first.last_equal_step}:{first.last_equal_step + 1})"
        )
    if first.before is not None:
        yield f"the last op that is equal is {_op(first.before)}"
    if first.written_by is not None:
        yield f"its memory was last written by {_op(first.written_by)}"
    if first.same_as_step is not None:
        yield f"A had this data in step {first.same_as_step}"
    factors = sorted({round(row.factor, 3) for row in first.values if row.factor is not None})
    if factors and len(factors) == 1:
        yield f"values of B are {factors[0]:g} times those of A"


def _again(first: Difference, step: int) -> str:
    """The steps of a side to record: with the one before, in whose update of the optimizer it may have begun."""
    earlier = 0 if first.last_equal_step is None else first.step_a - first.last_equal_step
    return f"{max(0, step - earlier)}:{step + 1}"


def _values(first: Difference) -> Table:
    columns: tuple[Column[Differing], ...] = (
        Column("value", lambda row: row.role),
        Column("dtype", lambda row: row.dtype),
        Column("shape", _shape),
        Column("sum A", lambda row: _number(row.sum_a)),
        Column("sum B", lambda row: _number(row.sum_b)),
        Column("largest A", lambda row: _number(row.largest_a), drop=1),
        Column("largest B", lambda row: _number(row.largest_b), drop=1),
        Column("error (estimated)", lambda row: "" if row.error is None else f"{row.error:.1e}"),
        Column("explained", lambda row: "" if row.explained is None else f"{row.explained:.1e}"),
    )
    return table(columns, first.values, few=8, left=first.values_left, rest="values")


def _shape(row: Differing) -> str:
    if not row.dtype:
        return ""
    one, other = list(row.shape_a), list(row.shape_b)
    return str(one) if one == other else f"{one} and {other}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _ranks_summary(document: FirstDifference) -> str:
    first = document.first
    return "" if first is None else f"rank {first.rank_b} is the first that differs"


def _ranks(document: FirstDifference) -> Table:
    columns: tuple[Column[Difference], ...] = (
        Column("rank", lambda item: item.rank_b),
        Column("step", _steps),
        Column("first difference", _what),
    )
    return table(columns, document.ranks, few=8, rest="ranks")
