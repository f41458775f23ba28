"""Writes the generated pages: rules from their docstrings, the tables of the model, schemas, an example of a comment.

python docs/generate.py             write them
python docs/generate.py --check     change nothing; exit 1 and name the pages that differ
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import inspect
import json
import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscope.analyzers.query import QUERIES
from perfscope.analyzers.query.frames import DERIVED
from perfscope.analyzers.registry import rule_homes
from perfscope.analyzers.results import labels_of, result_table, table_names
from perfscope.analyzers.rule_page import sections_of
from perfscope.analyzers.thresholds import Threshold, constants, thresholds_in
from perfscope.commands.symptoms import SYMPTOMS, Symptom
from perfscope.dashboards.report.compare.comparison import compare
from perfscope.dashboards.report.json_schema import report_schema
from perfscope.model import severity
from perfscope.model.documents import comparison
from perfscope.model.plugins import named
from perfscope.model.trace import MEMORY_TABLES, RECORDED, recording_words
from perfscope.model.trace.tables import TABLES
from perfscope.plugins.ahead.sweep import document as sweep
from perfscope.plugins.fingerprint import result as fingerprint
from perfscope.plugins.job.outlets import json_document as job
from perfscope.plugins.lower import document as lower
from perfscope.plugins.parity import document as parity
from perfscope.plugins.parity.cases import document as parity_cases
from perfscope.plugins.plan import document as plan
from perfscope.plugins.port import document as port
from perfscope.plugins.precision import document as precision
from perfscope.plugins.trials import document as trials

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfscope.model.results import ResultTable
    from perfscope.model.trace.columns import Column

DOCS = Path(__file__).resolve().parent
GENERATED = "<!-- Written by docs/generate.py; `make docs` writes it again. -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSource:
    """What a rule's page is made of, read from its file without running it."""

    id: str
    path: str
    doc: str
    needs: tuple[str, ...]
    thresholds: tuple[Threshold, ...]


def rule_source(rule_id: str, path: Path) -> RuleSource:
    """Read a rule's file. ``ValueError`` if it has no docstring."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    doc = ast.get_docstring(tree)
    if not doc:
        raise ValueError(f"{path}: a rule's docstring is its page, and it has no docstring")
    own = [ast.literal_eval(value) for name, value, _ in constants(tree) if name == "NEEDS"]
    return RuleSource(
        id=rule_id,
        path=path.relative_to(DOCS.parent).as_posix() if path.is_relative_to(DOCS.parent) else path.name,
        doc=doc,
        needs=own[0] if own else rule_homes()[rule_id].needs if rule_id in rule_homes() else (),
        thresholds=thresholds_in(text),
    )


def rule_page(rule: RuleSource) -> str:
    """One rule as Markdown: the docstring's sections, what it needs, its thresholds, its file."""
    summary, _, body = rule.doc.partition("\n")
    parts = [GENERATED, f"# {rule.id}", _markdown(summary), *_sections(body)]
    parts.append("## What it needs")
    if rule.needs:
        parts.append("\n".join(f"- `{key}`: {recording_words(key)}" for key in rule.needs))
        parts.append("Where one of these was not recorded the rule abstains and says so.")
    else:
        parts.append(
            "No one recording is required: the rule uses what there is, and abstains where that is too little."
        )
    if rule.thresholds:
        parts.append("## Thresholds")
        rows = [
            f"| `{threshold.name}` | {_cell(_written(threshold))} | {_cell(_markdown(threshold.reason))} |"
            for threshold in rule.thresholds
        ]
        parts.append("\n".join(["| constant | value | reason |", "| --- | --- | --- |", *rows]))
    parts.append(f"Source: [`{rule.path}`](../../{rule.path})")
    return "\n\n".join(parts) + "\n"


def _written(threshold: Threshold) -> str:
    """A threshold as it is written; one that is shared by the rules with what it stands for."""
    stands_for = getattr(severity, threshold.written, None)
    return f"`{threshold.written}`" if stands_for is None else f"`{stands_for}` (`{threshold.written}`)"


def _sections(body: str) -> list[str]:
    """The docstring's body, its ``Heading:`` lines turned into headings."""
    parts = [
        part
        for title, text in sections_of(body).items()
        for part in (f"## {title}" if title else "", _paragraphs(text))
    ]
    return [part for part in parts if part]


def _paragraphs(section: str) -> str:
    """One section as Markdown."""
    text = _markdown(section).strip("\n")
    return text[:1].upper() + text[1:]


def _markdown(text: str) -> str:
    """Docstring text as Markdown: double backticks become single ones; a literal block loses its ``::``."""
    return re.sub(r"::$", ":", re.sub(r"``([^`]+)``", r"`\1`", text), flags=re.MULTILINE)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def rule_list(rules: list[RuleSource]) -> str:
    """The list of all rules with their one-line summaries."""
    rows = [f"| [`{rule.id}`]({rule.id}.md) | {_cell(_markdown(rule.doc.splitlines()[0]))} |" for rule in rules]
    return "\n\n".join(
        [
            GENERATED,
            "# The rules",
            "`perfscope rules` lists them, `perfscope explain ID` prints one of these pages.",
            "\n".join(["| rule | what it finds |", "| --- | --- |", *rows]),
            "How to write one: [adding a rule](../adding-a-rule.md).",
        ]
    ) + "\n"  # fmt: skip


def model_page() -> str:
    """The tables of a trace with every column's type, unit and meaning."""
    parts = [
        GENERATED,
        "# The tables of a trace",
        "`perfscope.load(path)` gives a `Trace`. `trace.kernels` and its sisters are pandas frames with the columns "
        "below; text columns are categorical, and a nullable column holds `<NA>` (NaN where it holds "
        "floats) where the source said nothing. Times are integer nanoseconds on the trace's own clock; intervals are "
        "half open. Where the rank is known, each frame begins with it.",
        "A run of `perfscope run` has a second recording, the detail pass, in `trace.detail`. The tables of memory "
        f"({', '.join(f'`{name}`' for name in MEMORY_TABLES)}) are recorded in that pass, and "
        "`trace.memory` and its sisters are its tables; the rows and times they name are those of "
        "`trace.memory_pass`, so the op of an event is in `trace.memory_pass.slices`. All other frames, and all times "
        "of steps, ops and kernels, are of the timing pass; those of the detail pass are in `trace.detail.slices` and "
        "its sisters.",
    ]
    for name, table in sorted(TABLES.items()):
        rows = [
            f"| `{column.name}` | {_type(column)} | {_cell(column.unit)} | {_cell(column.doc)} |"
            for column in table.columns
        ]
        parts += [
            f"## {name}",
            table.doc,
            "\n".join(["| column | type | unit | meaning |", "| --- | --- | --- | --- |", *rows]),
        ]
    parts += [
        "## What was recorded",
        '`trace.recorded` tells "nothing happened" from "nobody looked". A rule whose input was not recorded abstains.',
        "\n".join(
            [
                "| key | what it stands for |",
                "| --- | --- |",
                *(f"| `{key}` | {_cell(recording_words(key))} |" for key in (*RECORDED, *named("recordings"))),
            ]
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _type(column: Column) -> str:
    return ("text" if column.text else column.dtype) + (", nullable" if column.nullable else "")


EXAMPLE = """# A comment on a pull request

What `perfscope compare` writes about a commit that computes attention by its formula in place of
`scaled_dot_product_attention`: two recordings of the `attention` [workload](workloads.md), one launch each, so that
counts and bytes are judged and the step time is not. `perfscope compare commits` launches both sides in turns and
[judges the step time too](compare.md#how-a-verdict-is-reached).

```console
$ perfscope compare runs fixtures/cpu-attention-sdpa fixtures/cpu-attention-naive --markdown comment.md
```

The rest of this page is the comment.

---
"""


@lru_cache
def example_page() -> str:
    """A comparison of two recordings of the repository, as a comment."""
    with contextlib.chdir(DOCS.parent):
        compared = compare("fixtures/cpu-attention-sdpa", "fixtures/cpu-attention-naive")
    return f"{GENERATED}\n\n{EXAMPLE}\n{compared.markdown()}"


def declared_results() -> dict[str, ResultTable[Any]]:
    """All result tables by name."""
    return {name: result_table(name) for name in table_names()}


def query_page() -> str:
    """What ``perfscope query`` reads and the queries that are ready."""
    parts = [
        GENERATED,
        "# Queries in SQL",
        "`perfscope query PATH SQL` answers SQL (duckdb, extra `sql`) over the tables of a run, a trace file or a "
        "folder of traces, as text, `--format csv` or `--format json`. It reads nothing else: no file, no network. "
        "In Python: `perfscope.analyzers.query.Database(traces).query(sql)` gives a pandas frame.",
        "```console\n$ perfscope query latest op_times\n"
        '$ perfscope query latest "select name, count(*) from slices group by name"\n```',
        "The declared tables are [those of a trace](model.md). Each begins with `source` (number of the trace), `rank` "
        "and `row`, the number that columns of other tables refer to: "
        "`kernels k join slices s on s.source = k.source and s.row = k.op`. Times are integer nanoseconds. "
        "Kinds are words (`host_to_device`).",
    ]
    described = {**DERIVED, **declared_results()}
    for name, table in sorted(described.items()):
        rows = "\n".join(f"| `{column}` | {_cell(meaning)} |" for column, meaning in _described(table))
        parts += [f"## {name}", table.doc, f"| column | meaning |\n| --- | --- |\n{rows}"]
    parts.append("## Queries that are ready")
    for name, query in QUERIES.items():
        parts += [f"### {name}", f"{query.doc}.", f"```sql\n{inspect.cleandoc(query.sql)}\n```"]
    return "\n\n".join(parts) + "\n"


def _described(table: ResultTable[Any]) -> Iterator[tuple[str, str]]:
    yield from ((name, doc) for name, _, doc in labels_of(table))
    yield from ((column.name, f"{column.doc}{_unit(column.unit)}") for column in table.columns)


def _unit(unit: str) -> str:
    return {"ns": ", ns", "bytes": ", B"}.get(unit, "")


def symptoms_page() -> str:
    """The symptoms and their answers as Markdown."""
    lines = [
        GENERATED,
        "# I see ...",
        "Symptoms, each with the part of the report that shows it. `perfscope explain GPU is idle` prints "
        "the answers too. Questions about perfscope itself: [FAQ](faq.md).",
    ]
    for symptom in SYMPTOMS:
        if symptom.about == "program":
            lines += [*_answer(symptom), f"**Fix.** {_linked(symptom.fix)}"]
    return "\n\n".join(lines) + "\n"


def faq_page() -> str:
    """The questions about perfscope and their answers as Markdown."""
    lines = [
        GENERATED,
        "# Questions",
        "About perfscope; `perfscope explain no steps found` prints the answers too. Symptoms of a program: "
        "[I see ...](symptoms.md). Words of a report: [glossary](glossary.md).",
    ]
    for question in SYMPTOMS:
        if question.about == "perfscope":
            lines += [*_answer(question), *([_linked(question.fix)] if question.fix else [])]
    return "\n\n".join(lines) + "\n"


def _answer(symptom: Symptom) -> list[str]:
    rules = ", ".join(f"[`{rule}`](rules/{rule}.md)" for rule in symptom.rules)
    return [
        f"## {symptom.question}",
        _linked(symptom.look),
        *([f"Rules: {rules}."] if rules else []),
        f"```sh\n{symptom.command}\n```",
    ]


def _linked(text: str) -> str:
    """The pages that a text names, as links."""
    return re.sub(r"docs/([a-z-]+)\.md", r"[\1](\1.md)", text)


@lru_cache(maxsize=1)
def pages() -> dict[str, str]:
    """Every generated page: path below docs/ -> content."""
    rules = []
    for rule_id, home in rule_homes().items():
        spec = find_spec(home.module)
        if spec is None or spec.origin is None:
            raise ValueError(f"{home.module} is registered and cannot be found")
        rules.append(rule_source(rule_id, Path(spec.origin)))
    written = {f"rules/{rule.id}.md": rule_page(rule) for rule in rules}
    return {
        **written,
        "rules/README.md": rule_list(rules),
        "model.md": model_page(),
        "query.md": query_page(),
        "symptoms.md": symptoms_page(),
        "faq.md": faq_page(),
        "example-regression.md": example_page(),
        "report-schema.json": json.dumps(
            report_schema({name: result_table(name) for name in table_names()}), indent=2, ensure_ascii=False
        )
        + "\n",
        "compare-schema.json": json.dumps(comparison.json_schema(), indent=2, ensure_ascii=False) + "\n",
        "try-schema.json": json.dumps(trials.json_schema(), indent=2, ensure_ascii=False) + "\n",
        "first-difference-schema.json": json.dumps(fingerprint.json_schema(), indent=2, ensure_ascii=False) + "\n",
        "parity-schema.json": json.dumps(parity.json_schema(), indent=2, ensure_ascii=False) + "\n",
        "plan-schema.json": json.dumps(plan.json_schema(), indent=2, ensure_ascii=False) + "\n",
        "precision-schema.json": json.dumps(precision.json_schema(), indent=2, ensure_ascii=False) + "\n",
        "parity-cases-schema.json": json.dumps(parity_cases.json_schema(), indent=2, ensure_ascii=False) + "\n",
        "port-schema.json": json.dumps(port.json_schema(), indent=2, ensure_ascii=False) + "\n",
        "sweep-schema.json": json.dumps(sweep.json_schema(), indent=2, ensure_ascii=False) + "\n",
        "lower-schema.json": json.dumps(lower.json_schema(), indent=2, ensure_ascii=False) + "\n",
        "job-schema.json": json.dumps(job.json_schema(), indent=2, ensure_ascii=False) + "\n",
    }


def stale(folder: Path = DOCS) -> list[str]:
    """Pages under ``folder`` that are absent, differ, or belong to no rule any more."""
    wanted = pages()
    wrong = [name for name, text in wanted.items() if not _holds(folder / name, text)]
    extra = [f"rules/{path.name}" for path in (folder / "rules").glob("*.md") if f"rules/{path.name}" not in wanted]
    return sorted([*wrong, *extra])


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def main() -> int:
    """Write the pages, or with ``--check`` only say which differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a page differs")
    wrong = stale()
    if parser.parse_args().check:
        for name in wrong:
            print(f"docs/{name} differs from what docs/generate.py writes")
        return 1 if wrong else 0
    wanted = pages()
    (DOCS / "rules").mkdir(exist_ok=True)
    for name in wrong:
        if name in wanted:
            (DOCS / name).write_text(wanted[name], encoding="utf-8")
        else:
            (DOCS / name).unlink()
        print(f"docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
