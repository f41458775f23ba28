"""The table of docs/workloads.md: every labelled case that runs a workload, with what was recorded of its command.

`make accuracy` runs the commands and records the first finding in docs/accuracy.json and the picture in
docs/pictures/workloads; ``python -m tests.accuracy --page`` writes the table from them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.accuracy.cases import CASES, Case, Program, Recorded
from tests.accuracy.labels import NO_RULE, labelled_lines, lines_of
from tests.conftest import REPOSITORY

PAGE = REPOSITORY / "docs" / "workloads.md"
PICTURES = REPOSITORY / "docs" / "pictures" / "workloads"
BEGIN, END = "<!-- `python -m tests.accuracy --page` writes from here -->", "<!-- to here -->"
OTHERS = """\
Further defects. A rule finds them on a GPU, in a compiled program or with packages of `perfscope[workloads]`; without a
rule, `perfscope compare` with a run of the twin does:"""
CODE = 60
"""Most characters of a labelled line."""
HEADS = ("what it shows, its command and its twin", "first finding, and a step of both")


def rows() -> list[Case]:
    """Labelled cases that run a workload, in the order of the table."""
    return [case for case in CASES if isinstance(case.source, Program) and case.expects]


def picture_of(case: Case) -> Path:
    """File of a case's picture."""
    return PICTURES / f"{re.sub('[^a-z0-9]+', '-', case.title.lower())}.svg"


def text(results: Mapping[str, Any]) -> str:
    """The page with the table written again."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(results)}\n\n{OTHERS}\n\n{others()}\n\n{END}{after}"


def others() -> str:
    """Labelled lines without a row, as a list."""
    shown = {place for case in rows() for place in places(case)}
    ranks = {f"{case.source.key.split()[0].rpartition('.')[2]}.py" for case in rows() if None in case.expects.values()}
    lines = []
    for place, (line, rules) in labelled_lines().items():
        if place in shown or (rules == {NO_RULE} and place[0] in ranks):
            continue
        why = line.partition("# defect: ")[2].partition(": ")[2]
        named = ", ".join(f"`{rule}`" for rule in sorted(rules - {NO_RULE}))
        told = f" ({named})" if named else ""
        lines.append(f"- [`{place[0]}`](../perfscope/workloads/{place[0]}){told}{f': {why}' if why else ''}")
    return "\n".join(dict.fromkeys(lines))


def table(results: Mapping[str, Any]) -> str:
    """The table in Markdown."""
    recorded = {f"{case['framework']} {case['mode']}: {case['name']}": case for case in results["cases"]}
    lines = [HEADS, ("---",) * len(HEADS), *(_row(case, recorded.get(case.title, {})) for case in rows())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _row(case: Case, result: Mapping[str, Any]) -> tuple[str, ...]:
    picture = picture_of(case)
    path = f"pictures/workloads/{picture.name}"
    shown = f"<br>[![{case.name}: a step of the defect and of its twin]({path})]({path})" if picture.is_file() else ""
    return (
        "<br>".join((f"**{case.name[:1].upper()}{case.name[1:]}**", *_lines(case), *_commands(case))),
        f"{_finding(case, result)}{_compiled(case)}{shown}",
    )


def _lines(case: Case) -> Iterator[str]:
    """The labelled lines, each a link to its file."""
    for file, place in places(case):
        code = labelled_lines()[file, place][0].partition("# defect:")[0].strip()
        short = code if len(code) <= CODE else f"{code[: CODE - 3]}..."
        yield f"[`{file}`](../perfscope/workloads/{file}): {_cell(f'`{short}`')}"


def places(case: Case) -> list[tuple[str, int]]:
    """(file below the workloads, line) of the labels of a case; those of the demo are its own."""
    demo = isinstance(case.source, Program) and case.source.module.endswith(".demo")
    module = "perfscope.workloads.jax." if case.framework == "jax" else "perfscope.workloads."
    found = (lines_of(rule, line, module) for rule, line in case.expects.items() if line is not None)
    return sorted({place for lines in found for place in lines if demo or place[0] != "demo.py"})


def _commands(case: Case) -> Iterator[str]:
    assert isinstance(case.source, Program)
    yield f"`{case.source.command}`"
    if not isinstance(case.twin, Program):
        return
    own, other = _flags(case.source), _flags(case.twin)
    added = " ".join(flag for flag in other if flag not in own)
    removed = [flag for flag in own if flag not in other]
    kept_names = {flag.split()[0] for flag in other if flag not in own}
    gone = " ".join(flag for flag in removed if flag.split()[0] not in kept_names)
    twin = f"`{added}`" if added else ""
    if gone:
        twin += f"{' ' if added else ''}{'in place of' if added else 'without'} `{gone}`"
    yield f"twin: {twin}"


def _flags(program: Program) -> list[str]:
    """Flags with their values."""
    return re.findall(r"--\S+(?: (?!--)\S+)*", " ".join(program.arguments))


def _finding(case: Case, result: Mapping[str, Any]) -> str:
    """The first finding, the labelled rule if that is another, and the twin's."""
    if "first" not in result:
        return "not recorded yet"
    first, twin = result["first"], result["twin_first"]
    if first is None:
        why = [answer["explained"] or answer["reason"] or answer["status"] for answer in result["answers"]]
        return f"none: {_cell('; '.join(why))}"
    shown = f"[`{first['rule']}`](rules/{first['rule']}.md): {_cell(first['title'])}"
    if first["rule"] not in case.expects:
        shown += f"; then {', '.join(f'`{rule}`' for rule in case.expects)}"
    return shown + (f"<br>twin: `{twin['rule']}`" if twin else "")


def _compiled(case: Case) -> str:
    """Machines for which compiled programs with the same labelled line are judged."""
    found = [
        other.mode
        for other in CASES
        if isinstance(other.source, Recorded)
        and not other.story
        and other.framework == case.framework
        and other.expects.items() & case.expects.items()
    ]
    return f"<br>also compiled for {' and '.join(dict.fromkeys(found))}" if found else ""


def _cell(words: str) -> str:
    """Words for a cell: outside of code their stars and underscores are escaped."""
    parts = words.replace("|", "\\|").replace("\n", " ").split("`")
    return "`".join(part if number % 2 else re.sub(r"([*_<\[])", r"\\\1", part) for number, part in enumerate(parts))
