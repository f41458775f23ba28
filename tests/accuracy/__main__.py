"""Judges the labelled cases, measures what defects cost, and writes docs/accuracy.json, docs/accuracy.md, and the table
and the pictures of docs/workloads.md.

make accuracy                                   all, in 45 minutes on two quiet cores
python -m tests.accuracy --filter 'jit.*host'   cases whose name matches; the results of the others stay
python -m tests.accuracy --only advice          the cases of first advice, or of the rules (``rules``)
python -m tests.accuracy --page                 only writes the page from the results again
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tests.accuracy import advice_judge, workloads_page
from tests.accuracy.advice import AdviceCase
from tests.accuracy.advice_cases import ADVICE
from tests.accuracy.cases import CASES, Case, Program
from tests.accuracy.judge import Judge, lacking, to_json
from tests.accuracy.page import page
from tests.accuracy.picture import legend
from tests.accuracy.saving import measured_saving
from tests.conftest import REPOSITORY

RESULTS = REPOSITORY / "docs" / "accuracy.json"
PAGE = REPOSITORY / "docs" / "accuracy.md"
SCHEMA = "perfscope.accuracy/1"
PAIRS = 4


def main(argv: Sequence[str] | None = None) -> int:
    """Run the requested cases; return 1 if a case could not be judged."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", default="", help="regular expression on 'framework mode: name'")
    parser.add_argument("--only", choices=("rules", "advice"), help="one kind of case")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="launches of defect and twin; 0 measures no saving")
    parser.add_argument("--page", action="store_true", help="only write the page")
    asked = parser.parse_args(argv)
    failed = 0
    if not asked.page:
        with tempfile.TemporaryDirectory(prefix="accuracy-") as folder:
            judge = Judge(Path(folder))
            for case in CASES if asked.only != "advice" else ():
                if re.search(asked.filter, case.title):
                    failed += not judged(judge, case, asked.pairs, Path(folder) / "launches")
            for advice in ADVICE if asked.only != "rules" else ():
                if re.search(asked.filter, advice.title):
                    failed += not advised(advice, Path(folder) / "advice")
    if not RESULTS.exists():
        return 1
    keep_advice()
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    texts = {
        PAGE: page(results),
        workloads_page.PAGE: workloads_page.text(results),
        workloads_page.PICTURES / "legend.svg": legend(),
    }
    for file, text in texts.items():
        file.write_text(text, encoding="utf-8")
        print(f"{file.relative_to(REPOSITORY)} is written")
    return 1 if failed else 0


def judged(judge: Judge, case: Case, pairs: int, folder: Path) -> bool:
    """Judge a case and put its result into the file; whether that went well."""
    if (absent := lacking(case)) is not None:
        print(f"{case.title}: left out, no {absent}", flush=True)
        return True
    try:
        result = judge.result(case)
        if case.measured and pairs and isinstance(case.source, Program) and isinstance(case.twin, Program):
            saving = measured_saving(case.source, case.twin, folder, pairs)
            result = replace(result, saving=None if saving is None else asdict(saving))
    except Exception:  # one case that fails costs no other
        print(f"{case.title}: failed\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        return False
    keep(to_json(result))
    if result.picture and case.expects:
        workloads_page.PICTURES.mkdir(exist_ok=True)
        workloads_page.picture_of(case).write_text(result.picture, encoding="utf-8")
    found = ", ".join(f"{answer.rule} {'found' if answer.found else answer.status}" for answer in result.answers)
    alarms = ", ".join(f"{alarm.rule} ({alarm.of})" for alarm in result.alarms)
    print(f"{case.title}: {found or 'clean'}{f'; besides {alarms}' if alarms else ''}", flush=True)
    return True


def advised(case: AdviceCase, folder: Path) -> bool:
    """Judge the first advice of a case and put the verdict into the file; whether that went well."""
    if (package := advice_judge.missing_package(case)) is not None:
        print(f"{case.title}: left out, no {package}", flush=True)
        return True
    try:
        result = advice_judge.judge(case, folder)
    except Exception:  # one case that fails costs no other
        print(f"{case.title}: failed\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        return False
    keep_advice(advice_judge.to_json(result))
    print(f"{case.title}: {result.verdict}{f' ({result.why})' if result.why else ''}", flush=True)
    return True


def keep(result: dict[str, Any]) -> None:
    """Put one result into the file, in the order of the table; those of cases that are gone are dropped."""
    held = _held()
    results = {(case["framework"], case["mode"], case["name"]): case for case in held.get("cases", ())}
    key = (result["framework"], result["mode"], result["name"])
    if result["saving"] is None and key in results:  # not measured this time
        result = {**result, "saving": results[key]["saving"]}
    results[key] = result
    order = [(case.framework, case.mode, case.name) for case in CASES]
    _write(
        held,
        date=datetime.now(UTC).date().isoformat(),
        versions={name: _version(name) for name in ("torch", "jax", "numpy")},
        not_judged=[case.title for case, key in zip(CASES, order, strict=True) if key not in results],
        cases=[results[key] for key in order if key in results],
    )


def keep_advice(result: dict[str, Any] | None = None) -> None:
    """Put one verdict into the file, as `keep` does; without one only those of cases that are gone are dropped."""
    held = _held()
    verdicts = [*held.get("advice", ()), *(() if result is None else (result,))]
    results = {(case["framework"], case["kind"], case["name"]): case for case in verdicts}
    order = [(case.framework, case.kind, case.name) for case in ADVICE]
    _write(
        held,
        advice_date=held.get("advice_date", "") if result is None else datetime.now(UTC).date().isoformat(),
        advice_not_judged=[case.title for case, key in zip(ADVICE, order, strict=True) if key not in results],
        advice=[results[key] for key in order if key in results],
    )


def _held() -> dict[str, Any]:
    held: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return held


def _write(held: Mapping[str, Any], **new: Any) -> None:
    document = {"schema": SCHEMA, **{key: value for key, value in held.items() if key != "schema"}, **new}
    RESULTS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    raise SystemExit(main())
