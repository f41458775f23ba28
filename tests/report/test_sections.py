"""Sections in every format: golden files, and names from untrusted files in every field."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from perfscope.analyzers.engine import Analysis, analyze
from perfscope.analyzers.sections.programs import plan_section
from perfscope.dashboards.report.blocks import (
    Advice,
    Amount,
    Area,
    Areas,
    Axis,
    Badge,
    Band,
    Block,
    Box,
    Code,
    Column,
    Command,
    Dot,
    Effect,
    FindingBlock,
    Head,
    Lane,
    Lanes,
    Legend,
    Listing,
    Marked,
    Plot,
    Range,
    Section,
    Table,
    Text,
    table,
)
from perfscope.dashboards.report.renderers.html import sections_html
from perfscope.dashboards.report.renderers.markdown import sections_markdown
from perfscope.dashboards.report.renderers.text import printed, sections_text
from perfscope.dashboards.report.sections.findings import evidence_table
from perfscope.dashboards.report.summary import sections
from perfscope.model.finding import Excerpt, Finding, Where
from tests.memory.test_section import of_rank
from tests.plans.build import graph, kernel, plan, trace_of
from tests.ranks.build import rank_set
from tests.report.analyses import analysis, compiled, programs
from tests.report.test_collectives import LATE
from tests.report.test_html import Parsed
from tests.report.test_programs import sharded

Golden = Callable[[str, str], None]


def planned(folder: Any) -> Analysis:
    section = plan_section([trace_of(folder, plan(graph(kernel())))])
    return replace(analysis(), plans=section)


MADE: dict[str, Callable[[Any], Analysis]] = {
    "collectives": lambda _: analyze(rank_set(LATE, jitter_us=0), ["straggler"]),
    "compile": lambda _: analysis(compile=compiled()),
    "estimate": lambda _: replace(analysis(), estimate=analyze(sharded()).estimate),
    "memory": lambda _: analyze([of_rank(rank, size=100 + 10 * rank, capacity=4000) for rank in range(2)], []),
    "plan": planned,
    "programs": lambda _: analysis(programs=programs()),
}


def terminal(shown: tuple[Section, ...], *, width: int = 100, verbose: bool = False) -> str:
    return printed(lambda columns: sections_text(shown, columns, verbose=verbose), width=width, color=False)


@pytest.mark.parametrize("name", MADE)
def test_golden(name: str, tmp_path: Any, golden: Golden) -> None:
    shown = sections(MADE[name](tmp_path))
    golden(f"{name}.txt", terminal(shown) + "\n=== -v\n\n" + terminal(shown, verbose=True))
    golden(f"{name}.md", sections_markdown(shown))
    golden(f"{name}.html", "\n".join(sections_html(shown)).replace("><", ">\n<"))


EVIL = "<script>alert(1)</script>|`x` [a](b) @team\x1b[31m\n# /home/alice/x token=hunter2hunter2"


def hostile(text: str) -> tuple[Section, ...]:
    """A section with ``text`` in every field that holds one."""
    columns: tuple[Column[str], ...] = (
        Column("text", lambda cell: cell),
        Column("code", lambda cell: cell, "code"),
        Column("place", lambda cell: cell, "place"),
        Column("number", lambda cell: cell, "ns"),
        Column("badge", lambda cell: Badge(cell, "worse")),
        Column("change", lambda _: Effect(0.03, 0.02, 0.04, 0.01, "worse"), "change"),
        Column("amount", lambda _: Amount(3, "bytes"), "count"),
    )
    blocks: tuple[Block, ...] = (
        table(columns, [text], title=text),
        table(columns, [text], title=text, detail=True),
        Text(text),
        Text(text, warning=True),
        Listing(items=(text,)),
        Command("see", text),
        Advice(text, f"{text}\n\n```python\n{text}\n```\n\n{text}"),
        Code((text, f"    {text}")),
        table(columns, [text], bar="effects"),
        Table(heads=(Head(text, "text"), Head(text, "share")), rows=((text, 0.5),), rest=text, left=2),
        Table(heads=(Head("part", "text"), Head("share", "share")), rows=((text, 0.5), (text, 0.5)), bar="parts"),
        finding(text),
        *charts(text),
    )
    return (Section(title=text, summary=text, blocks=blocks), Section(title=text, summary=text, detail=True))


def charts(text: str) -> tuple[Block, ...]:
    box, axis, legend = Box(start=0, end=1, color="#fff", title=text), Axis(low=0, high=2), Legend(((text, "#fff"),))
    lane = Lane(name=text, boxes=(box,), words=text, amount=text, mark=0.5)
    area, band = Area(name=text, color="#fff", bytes=(1, 2)), Band(name=text, start=0, end=1, color="#fff")
    return (
        Lanes(lanes=(lane,), legend=legend, below=(text,)),
        Plot(words=text, x=axis, y=axis, dots=(Dot(x=1, y=1, color="#fff", title=text, label=text),), boxes=(box,),
             limits=((1, text),), title=text, note=text, legend=legend, above=(text,), below=(text,)),
        Areas(words=text, places=(0.0, 0.5), areas=(area,), reserved=(3, 3), capacity_bytes=3, peak_place=0.5,
              peak_bytes=2, steps=(band,), phases=(band,), begins=text, ends=text),
    )  # fmt: skip


def finding(text: str) -> FindingBlock:
    where = Where(op=text, kernel=text, module=text, file=text, line=2)
    made = Finding(
        subject=text, title=text, severity="high", basis="measured", advice=f"{text}\n\n    {text}", detail=text,
        where=where, cost_ns_per_step=1, excerpt=Excerpt(path="/a.py", first=1, lines=(text, text, text)),
    )  # fmt: skip
    evidence = evidence_table([{"op": text, "site": text, "words": text, text: text, "wait_ns": 3}], {})
    return FindingBlock(rule=text, finding=made, saves=Amount(1, "ns"), ranks=(0, 1), evidence=evidence)


@given(st.one_of(st.just(EVIL), st.text(min_size=1)))
def test_no_text_of_a_file_is_obeyed(text: str) -> None:
    shown = hostile(text)
    said = terminal(shown, verbose=True)
    assert not any(ord(character) < 32 and character != "\n" for character in said)
    assert max(map(cell_len, said.splitlines())) <= 100
    page = "".join(sections_html(shown))
    assert Parsed(page).open == []
    assert "<script" not in page
    outside_code = re.sub(r"(?ms)^(`{3,})[^\n]*\n.*?^\1$", "", sections_markdown(shown))
    assert "<script" not in outside_code
    for form in (said, page, sections_markdown(shown)):
        assert "hunter2hunter2" not in form
        assert "alice" not in form


def test_values_keep_their_unit_and_narrow_columns_go_in_order() -> None:
    columns: tuple[Column[int], ...] = (
        Column("name", lambda _: "a" * 60, "code"),
        Column("time", lambda item: item, "ns"),
        Column("first", lambda _: "b" * 30, drop=1),
        Column("second", lambda _: "c" * 30, drop=2),
        Column("bound", lambda item: Marked(item, ">="), "bytes"),
        Column("range", lambda item: Range(item, 2 * item), "ns"),
        Column("nothing", lambda _: None),
    )
    made = table(columns, [1_500_000])
    assert [head.title for head in made.heads] == ["name", "time", "first", "second", "bound", "range"]
    (wide,) = (line for line in terminal((Section(title="t", blocks=(made,)),), width=200).splitlines() if "ms" in line)
    name, *others = wide.split()
    assert (len(name), "…" in name) == (36, True)
    assert " ".join(others) == f"1.50 ms {'b' * 30} {'c' * 30} >= 1.43 MiB 1.50 to 3.00 ms"
    narrow = terminal((Section(title="t", blocks=(made,)),), width=80)
    assert "first" not in narrow
    assert "1.50 to 3.00 ms" in narrow
