"""The ledger as blocks: what one side does extra, with the reason for the difference in time, and all layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from perfscope.dashboards.report.blocks import (
    Block,
    Column,
    Listing,
    Report,
    Section,
    Table,
    Text,
    Value,
    table,
    tables,
)
from perfscope.dashboards.report.renderers.html import report_html
from perfscope.dashboards.report.renderers.markdown import inline, open_section, section_markdown
from perfscope.dashboards.report.renderers.text import WIDTH, report_text
from perfscope.model.units import format_ns, format_share
from perfscope.model.untrusted_text import sanitize
from perfscope.plugins.port.differences import SLOWER
from perfscope.plugins.port.document import AMOUNTS, Amounts, Difference, Ledger, Row, Side, dump
from perfscope.plugins.port.ledger import kind_name

FEW_ROWS, FEW_DIFFERENCES, FEW_UNPAIRED = 60, 12, 8
NAMES = {"torch": "PyTorch", "jax": "JAX"}
_WORDS = {
    "copy": "copies or transposes data",
    "cast": "converts data to another floating-point type",
    "wider products": "multiplies in a wider type",
    "attention written out": "writes scores of attention to memory",
    "heads repeated": "repeats data in memory",
    "second forward": "runs the forward pass again in the backward pass",
    "weight gathered again": "gathers a weight more often",
    "constant baked in": "has an array as a constant of the program",
    "buffer not donated": "keeps the old state in memory in addition to the new one",
    "host sync": "waits for the device on the host",
    "host dispatch": "waits for the host to start its ops",
    "loop unrolled": "compiles alike layers one by one",
    "larger products": "computes more in the products of a layer",
}


def render_text(ledger: Ledger, *, width: int = WIDTH, color: bool = False, verbose: bool = False) -> str:
    """The ledger for a terminal."""
    return report_text(report_of(ledger), width=width, color=color, verbose=verbose)


def render_html(ledger: Ledger) -> str:
    """The ledger as one page that loads nothing."""
    return report_html(report_of(ledger), data_id="perfscope-port", data=dump(ledger).decode())


def render_markdown(ledger: Ledger) -> str:
    """The ledger as a comment on a pull request: differences open, layers folded."""
    report = report_of(ledger)
    parts = [
        f"### perfscope: {inline(sanitize(report.headline))}",
        " · ".join(inline(sanitize(fact)) for fact in report.facts),
    ]
    for number, section in enumerate(report.sections):
        parts.append(open_section(section, FEW_DIFFERENCES) if number == 0 else section_markdown(section, FEW_ROWS))
    return "\n\n".join(parts) + "\n"


def report_of(ledger: Ledger) -> Report:
    """The ledger as blocks."""
    return Report(headline=_headline(ledger), facts=tuple(_facts(ledger)), sections=tuple(_sections(ledger)))


def _headline(ledger: Ledger) -> str:
    a, b = title(ledger.a, "A"), title(ledger.b, "B")
    first = ledger.differences[0] if ledger.differences else None
    steps = ledger.a.step_ns, ledger.b.step_ns
    lead = f"{a} and {b}"
    if steps[0] and steps[1]:
        ratio = max(steps) / min(steps)  # type: ignore[type-var, operator]
        slower, faster = (a, b) if steps[0] > steps[1] else (b, a)
        lead = f"a step of {slower} takes {ratio:.2f} times as long as one of {faster}"
    if first is None:
        return f"{lead}; neither does anything that the other does not"
    who = a if first.side == "a" else b
    if steps[0] and steps[1] and not first.explains and (first.side == "a") == (steps[0] < steps[1]):
        return f"{lead}, which no work of one side only explains"  # the first row is of the faster side
    does = f"takes longer for {_layers(first.layers)}" if first.kind == SLOWER else _WORDS[first.kind]
    return f"{lead}; {who} {does}" + (", which explains it" if first.explains else "")


def title(side: Side, letter: str) -> str:
    """``PyTorch (A)``."""
    return f"{NAMES.get(side.framework, side.framework)} ({letter})"


def _facts(ledger: Ledger) -> Iterator[str]:
    for letter, side in (("A", ledger.a), ("B", ledger.b)):
        time = "no time" if side.step_ns is None else f"step {format_ns(side.step_ns)} ({side.basis})"
        yield f"{title(side, letter)} {side.path}: {side.layers} layers on {side.device}, {time}"


def _sections(ledger: Ledger) -> Iterator[Section]:
    yield _differences(ledger)
    if ledger.unpaired:
        alike = Counter(
            f"{kind_name(one.layer)} of {one.side.upper()}: {kind_name(one.reason)}" for one in ledger.unpaired
        )
        items = tuple(text if count == 1 else f"{text} ({count} layers)" for text, count in alike.items())
        yield Section(
            title="Layers without a partner",
            summary=f"{len(ledger.unpaired)} of {ledger.a.layers} and {ledger.b.layers}",
            blocks=(Listing(items=items, few=FEW_UNPAIRED),),
        )
    yield Section(
        title="Layers of both sides",
        summary="rows of one side add up to its step",
        blocks=tables(*layer_tables(ledger)),
    )
    notes = [f"{letter}: {note}" for letter, side in (("A", ledger.a), ("B", ledger.b)) for note in side.notes]
    if notes or ledger.notes:
        yield Section(title="Notes", blocks=(Listing(items=(*ledger.notes, *notes)),))
    yield Section(title="Method", blocks=tuple(_method()), detail=True)


def _differences(ledger: Ledger) -> Section:
    heading = "Differences"
    if not ledger.differences:
        return Section(title=heading, blocks=(Text("Nothing of 2% or more of a step."),))
    columns: list[Column[Difference]] = [
        Column("side", lambda one: one.side.upper()),
        Column("what", lambda one: one.kind),
        Column("share", lambda one: f"{format_share(one.share, 1)} of {one.of}"),
        Column("time", lambda one: one.time_ns or None, "ns", 3),
        Column("bytes", lambda one: one.bytes or None, "bytes", 4),
        Column("FLOPs", lambda one: one.flops or None, "quantity", 5),
        Column("count", lambda one: one.count or None, "count", 6),
        Column("line", lambda one: _place(one.file, one.line), "place"),
        Column("line of the other", lambda one: _place(one.other_file, one.other_line), "place", 1),
        Column("layers", lambda one: _layers(one.layers), "code", 2),
    ]
    made = table(columns, ledger.differences, few=FEW_DIFFERENCES)
    return Section(title=heading, summary=_first(ledger), blocks=tables(made))


def _first(ledger: Ledger) -> str:
    first = ledger.differences[0]
    return (
        "the first row explains the difference in time"
        if first.explains
        else "no row alone explains a difference in time"
    )


def _layers(layers: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(map(kind_name, layers)))


def _place(file: str | None, line: int | None) -> str:
    return "" if file is None else file if line is None else f"{file}:{line}"


def layer_tables(ledger: Ledger) -> Iterator[Table]:
    """All rows, alike layers together: each amount of A next to that of B; then what is read more rarely."""

    def pair(title: str, name: str, unit: str, drop: int) -> list[Column[Row]]:
        return [
            Column(f"{title} {letter}", lambda row, side=side: _amount(getattr(row, side), name), unit, drop)  # type: ignore[misc, arg-type]
            for letter, side in (("A", "a"), ("B", "b"))
        ]

    names: list[Column[Row]] = [
        Column("layer", lambda row: row.layer, "code"),
        Column("phase", lambda row: row.phase),
    ]
    rows = folded(ledger.rows)
    yield table(
        [
            *names,
            *pair("time", "time_ns", "ns", 0),
            Column("B - A", _more, "signed_ns", 1),
            *pair("FLOPs", "flops", "quantity", 3),
            *pair("bytes", "bytes", "bytes", 2),
        ],
        rows,
        few=FEW_ROWS,
    )
    yield table(
        [
            *names,
            *pair("launches", "launches", "count", 4),
            *pair("held at peak", "held_bytes", "bytes", 3),
            *pair("run again", "recompute_flops", "quantity", 2),
            *pair("dtype", "dtype", "text", 1),
            Column("line A", lambda row: _line(row.a), "place", 5),
            Column("line B", lambda row: _line(row.b), "place", 5),
        ],
        rows,
        few=FEW_ROWS,
        title="launches, memory, types and lines",
        detail=True,
    )


def _more(row: Row) -> Value:
    """Time of B beyond that of A."""
    times = [side.time_ns if side is not None else 0 for side in (row.a, row.b)]
    return None if times[0] is None or times[1] is None or not any(times) else times[1] - times[0]


def _amount(side: Amounts | None, name: str) -> Value:
    return None if side is None else getattr(side, name) or None


def _line(side: Amounts | None) -> str:
    return "" if side is None else _place(side.file, side.line)


def folded(rows: Sequence[Row]) -> list[Row]:
    """Rows of layers that differ in their number only, added up: ``blocks.*.up``."""
    result: dict[tuple[str, str], Row] = {}
    for row in rows:
        key = kind_name(row.layer), row.phase
        if key not in result:
            result[key] = replace(row, layer=key[0])
        else:
            before = result[key]
            result[key] = replace(before, a=_added(before.a, row.a), b=_added(before.b, row.b))
    return list(result.values())


def _added(one: Amounts | None, other: Amounts | None) -> Amounts | None:
    if one is None or other is None:
        return one or other
    sums = {
        name: None
        if (first := getattr(one, name)) is None or (second := getattr(other, name)) is None
        else first + second
        for name in AMOUNTS
    }
    return replace(one, **sums)


def _method() -> Iterator[Block]:
    yield Text(
        "Layers are paired by the sizes, names and order of their weights. An op belongs to the layer of the weight "
        "that it reads, else to the last layer before it; in the backward pass to that of the op that it "
        "differentiates. Products of activations, as in attention, have a separate row."
    )
    yield Text(
        "FLOPs are those of matrix products, convolutions and attention. Bytes are modelled: every operand and result "
        "of a launch once. Layers of a compiled loop share its amounts equally. Time of JAX is divided equally among "
        "the instructions that run at one moment."
    )
    yield Text(
        "A difference is work of a kind that a layer has at least 1.5 times as much of on one side, and that is at "
        "least 2% of the side's step. Copies without a name in the program, which XLA adds, are in the rows of layers "
        "only. If no difference takes half of the time by which a step is longer, and one layer does, that layer is "
        "the first row (slower layer)."
    )
