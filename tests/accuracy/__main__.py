"""Judges the labelled cases, measures what defects cost, and writes docs/accuracy.json and docs/accuracy.md.

make accuracy                                   all, in 25 minutes on two quiet cores
python -m tests.accuracy --filter 'jit.*host'   cases whose name matches; the results of the others stay
python -m tests.accuracy --page                 only writes the page from the results again
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tests.accuracy.cases import CASES, Case, Program
from tests.accuracy.judge import Judge, is_here, to_json
from tests.accuracy.page import page
from tests.accuracy.saving import measured_saving
from tests.conftest import REPOSITORY

RESULTS = REPOSITORY / "docs" / "accuracy.json"
PAGE = REPOSITORY / "docs" / "accuracy.md"
SCHEMA = "perfscope.accuracy/1"
PAIRS = 4


def main(argv: Sequence[str] | None = None) -> int:
    """Runs what is asked for; 1 if a case could not be judged."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", default="", help="regular expression on 'framework mode: name'")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="launches of defect and twin; 0 measures no saving")
    parser.add_argument("--page", action="store_true", help="only write the page")
    asked = parser.parse_args(argv)
    failed = 0
    if not asked.page:
        chosen = [case for case in CASES if re.search(asked.filter, case.title)]
        with tempfile.TemporaryDirectory(prefix="accuracy-") as folder:
            judge = Judge(Path(folder))
            for case in chosen:
                failed += not judged(judge, case, asked.pairs, Path(folder) / "launches")
    if not RESULTS.exists():
        return 1
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(page(results), encoding="utf-8")
    print(f"{PAGE.relative_to(REPOSITORY)} is written")
    return 1 if failed else 0


def judged(judge: Judge, case: Case, pairs: int, folder: Path) -> bool:
    """Judge a case and put its result into the file; whether that went well."""
    if not is_here(case.source):
        print(f"{case.title}: left out, {case.source.key} is not here", flush=True)
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
    found = ", ".join(f"{answer.rule} {'found' if answer.found else answer.status}" for answer in result.answers)
    alarms = ", ".join(f"{alarm.rule} ({alarm.of})" for alarm in result.alarms)
    print(f"{case.title}: {found or 'clean'}{f'; besides {alarms}' if alarms else ''}", flush=True)
    return True


def keep(result: dict[str, Any]) -> None:
    """Put one result into the file, in the order of the table; those of cases that are gone are dropped."""
    held = json.loads(RESULTS.read_text(encoding="utf-8"))["cases"] if RESULTS.exists() else []
    results = {(case["framework"], case["mode"], case["name"]): case for case in [*held, result]}
    order = [(case.framework, case.mode, case.name) for case in CASES]
    document = {
        "schema": SCHEMA,
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {name: _version(name) for name in ("torch", "jax", "numpy")},
        "not_judged": [case.title for case, key in zip(CASES, order, strict=True) if key not in results],
        "cases": [results[key] for key in order if key in results],
    }
    RESULTS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    raise SystemExit(main())
