"""docs/accuracy.md from docs/accuracy.json: scores by rule, savings, every miss with its explanation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfscope.model.units import format_ns
from tests.accuracy.known import limit

GENERATED = "<!-- Written by `make accuracy` from docs/accuracy.json. -->"
INTRODUCTION = """\
# Accuracy

Programs with a known defect, their twins without it, and recordings of others whose story is agreed. A defect is one
line of a [workload](workloads.md) that ends in `# defect: RULE`; all rules run on each program and each twin.
`make accuracy` runs them (about 45 minutes on two quiet cores; `FILTER=PATTERN` for some) and writes this page;
the slow tests hold every case to it. The table of cases is `tests/accuracy/cases.py`.

- **found**: defects that the labelled rule flags; **recall** is their share.
- **line**: of the found ones with a line, those where the finding names the labelled line itself.
- **false alarm**: a rule flags a program that no label of it names, and that does not bring it about. Recordings of
  others are labelled for one thing only: what else is in them counts neither way.
- **besides**: flags that no label names and that a hand-written reason calls right (the last table has each).
  Precision is without them, and with each of them counted as a false alarm after the slash.
- **clean**: programs and twins in which the rule looked and rightly found nothing."""


@dataclass(slots=True)
class Score:
    """Counts of one rule."""

    found: int = 0
    missed: int = 0
    lines: int = 0
    with_line: int = 0
    alarms: int = 0
    besides: int = 0
    clean: int = 0
    modes: set[str] = field(default_factory=set)

    @property
    def precision(self) -> float | None:
        """Found of all that was flagged; ``None`` where nothing was."""
        flagged = self.found + self.alarms
        return self.found / flagged if flagged else None

    @property
    def least_precision(self) -> float | None:
        """The same where whatever is called right by hand were a false alarm."""
        flagged = self.found + self.alarms + self.besides
        return self.found / flagged if flagged else None

    @property
    def recall(self) -> float | None:
        """Found of all defects; ``None`` without any."""
        defects = self.found + self.missed
        return self.found / defects if defects else None


def scores(cases: Iterable[dict[str, Any]]) -> dict[str, Score]:
    """By rule, sorted."""
    result: dict[str, Score] = defaultdict(Score)
    for case in cases:
        for answer in case["answers"]:
            score = result[answer["rule"]]
            score.modes.add(case["mode"])
            score.found += answer["found"]
            score.missed += not answer["found"]
            score.with_line += answer["line_found"] is not None
            score.lines += answer["line_found"] is True
        for alarm in case["alarms"]:
            result[alarm["rule"]].alarms += 1
        for flag in case["besides"]:
            result[flag.partition(" ")[0]].besides += 1
        for rule in case["clean"]:
            result[rule].clean += 1
    return dict(sorted(result.items()))


def total(of: Iterable[Score]) -> Score:
    """The sum of all rules."""
    whole = Score()
    for score in of:
        whole.found += score.found
        whole.missed += score.missed
        whole.lines += score.lines
        whole.with_line += score.with_line
        whole.alarms += score.alarms
        whole.besides += score.besides
        whole.clean += score.clean
    return whole


def page(document: dict[str, Any]) -> str:
    """The page in Markdown."""
    cases = document["cases"]
    defects = [case for case in cases if case["answers"]]
    by_rule = scores(cases)
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items() if version)
    parts = [
        GENERATED,
        INTRODUCTION,
        f"{len(defects)} cases with {sum(len(case['answers']) for case in defects)} labelled defects, "
        f"{len(cases) - len(defects)} clean ones, {sum(case['twin'] is not None for case in cases)} twins; "
        f"{document['date']}, {versions}.",
        *([f"Not judged in this run: {', '.join(document['not_judged'])}."] if document["not_judged"] else []),
        *_advice(document),
        "## By rule",
        _rule_table(by_rule),
        "## Promised and measured saving",
        "Promised: what the report shows as the saving of a step, of all findings of the rule at the labelled line. "
        "Measured: the step of the defect less that of its twin, launched in turns without a profiler; mean of the "
        "pairs and its 95% interval. A twin is not the program with the defect's time taken out: where it computes "
        "something else instead, its own time is in the difference.",
        _saving_table(cases),
        "## Misses, other lines and false alarms",
        _misses(cases),
        "## The cases",
        _case_table(cases),
    ]
    others = [case for case in cases if case["story"]]
    if others:
        rows = [(f"{case['framework']} {case['mode']}: {case['name']}", case["story"]) for case in others]
        parts += ["## Recordings of others", _table(("case", "what is in it"), rows)]
    right = [
        (f"{case['framework']} {case['mode']}: {case['name']}", rule, why)
        for case in cases
        for rule, why in case["besides"].items()
    ]
    if right:
        parts += [
            "## Flagged besides, and right",
            "Consequences of a defect, and findings that the program has in any case. They do not count.",
            _table(("case", "rule", "why"), right),
        ]
    return "\n\n".join(parts) + "\n"


ADVICE = """\
Problems that people described in public threads, each written again as a small program or file, and well-written
programs as controls (`tests/accuracy/advice_torch.py`, `advice_jax.py`, `advice_files.py`; the thread is in the case).

- **right**: the first finding is the answer of the thread: its rule, its line, and a fix with the words that matter.
  For a control: no advice of medium or high severity.
- **partly**: the answer is among the findings, but not first, or without its line or its fix.
- **wrong**: the answer is missing, or the report has a text that is false or impossible to follow."""


def _advice(document: dict[str, Any]) -> list[str]:
    """The parts on first advice."""
    cases = document.get("advice", [])
    if not cases:
        return []
    lacking = document["advice_not_judged"]
    short = [
        (f"{case['framework']} {case['kind']}: {case['name']}", case["verdict"], case["first"], case["why"])
        for case in cases
        if case["verdict"] != "right"
    ]
    return [
        "## First advice",
        ADVICE,
        f"{len(cases)} cases, {document['advice_date']}.",
        *([f"Not judged in this run: {', '.join(lacking)}."] if lacking else []),
        _advice_table(cases),
        *(["### First advice that is not right", _table(("case", "verdict", "first", "why"), short)] if short else []),
        "### The cases of first advice",
        _table(
            ("case", "program", "thread", "answer", "verdict"),
            [
                (
                    f"{case['framework']} {case['kind']}: {case['name']}",
                    f"`{case['how']} {case['program']}`",
                    case["thread"],
                    case["expected"],
                    case["verdict"],
                )
                for case in cases
            ],
        ),
    ]


def _advice_table(cases: Sequence[dict[str, Any]]) -> str:
    kinds = list(dict.fromkeys(case["kind"] for case in cases))
    rows = [(kind, *_verdicts([case for case in cases if case["kind"] == kind])) for kind in kinds]
    rows.append(("**all**", *_verdicts(cases)))
    return _table(("kind", "right", "partly", "wrong"), rows, left=1)


def _verdicts(cases: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    counts = [sum(case["verdict"] == verdict for case in cases) for verdict in ("right", "partly", "wrong")]
    return tuple(f"{count} of {len(cases)} ({count / len(cases):.0%})" for count in counts)


def _rule_table(by_rule: dict[str, Score]) -> str:
    rows = [_score_row(f"[`{rule}`](rules/{rule}.md)", score) for rule, score in by_rule.items() if _judged(score)]
    rows.append(_score_row("**all**", total(by_rule.values())))
    table = _table(("rule", "found", "recall", "line", "false alarms", "besides", "precision", "clean"), rows, left=1)
    silent = [f"`{rule}` ({score.clean})" for rule, score in by_rule.items() if not _judged(score)]
    return f"{table}\n\nWithout a labelled case, and never flagged (clean): {', '.join(silent)}." if silent else table


def _judged(score: Score) -> bool:
    return bool(score.found or score.missed or score.alarms or score.besides)


def _score_row(name: str, score: Score) -> tuple[str, ...]:
    return (
        name,
        f"{score.found} of {score.found + score.missed}",
        _share(score.recall),
        f"{score.lines} of {score.with_line}" if score.with_line else "",
        str(score.alarms),
        str(score.besides) if score.besides else "",
        f"{_share(score.precision)}{f' / {_share(score.least_precision)}' if score.besides else ''}",
        str(score.clean),
    )


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _saving_table(cases: Sequence[dict[str, Any]]) -> str:
    rows = []
    for case in cases:
        saving = case["saving"]
        if saving is None:
            continue
        best = max(case["answers"], key=lambda answer: answer["saves_ns"] or -1)
        predicted = best["saves_ns"]
        rows.append(
            (
                f"{case['framework']} {case['mode']}: {case['name']}",
                f"`{best['rule']}`" if predicted else "no rule gives a time",
                format_ns(predicted) if predicted else "",
                best["basis"] or "" if predicted else "",
                f"{format_ns(saving['saving_ns'])} \\[{format_ns(saving['low_ns'])}, {format_ns(saving['high_ns'])}\\]",
                f"{format_ns(saving['defect_ns'])} → {format_ns(saving['twin_ns'])}",
            )
        )
    return _table(("case", "rule", "promised", "basis", "measured", "step"), rows)


def _misses(cases: Sequence[dict[str, Any]]) -> str:
    rows = []
    for case in cases:
        name = f"{case['framework']} {case['mode']}: {case['name']}"
        for answer in case["answers"]:
            if answer["found"] and answer["line_found"] is not False:
                continue
            what = (
                f"names {', '.join(answer['places'])}, not {answer['label']}" if answer["found"] else answer["status"]
            )
            why = answer["explained"] or answer["reason"] or "not explained"
            rows.append((name, f"`{answer['rule']}`", what, why))
        first = case.get("first")
        if case["answers"] and first and first["rule"] not in {answer["rule"] for answer in case["answers"]}:
            why = limit(name, first["rule"], "first") or first["title"]
            rows.append((name, f"`{first['rule']}`", "is shown first", why))
        rows.extend(
            (name, f"`{alarm['rule']}`", f"false alarm ({alarm['of']})", alarm["explained"] or alarm["title"])
            for alarm in case["alarms"]
        )
    return _table(("case", "rule", "what", "why"), rows) if rows else "None."


def _case_table(cases: Sequence[dict[str, Any]]) -> str:
    rows = []
    for case in cases:
        answers = ", ".join(
            f"`{answer['rule']}`{'' if answer['found'] else ' **missed**'}" for answer in case["answers"]
        )
        alarms = ", ".join(f"`{alarm['rule']}` ({alarm['of']})" for alarm in case["alarms"])
        rows.append(
            (f"{case['framework']} {case['mode']}: {case['name']}", f"`{case['source']}`", answers or "clean", alarms)
        )
    return _table(("case", "program", "labelled", "false alarms"), rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int | None = None) -> str:
    rule = ["---" if left is None or column < left else "---:" for column in range(len(heads))]
    lines = [list(heads), rule, *([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
