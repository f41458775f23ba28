"""Lays the model of kernel times beside measured kernels of recordings of others.

make calibration                    prints the table and writes it into docs/compile-model.md
python -m tests.calibration --fit   fits the curves again and writes perfscope/analyzers/predict/curves.py first
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from perfscope.analyzers.predict.curves import CURVES
from tests.calibration.files import PROGRAMS
from tests.calibration.fit import fitted, source
from tests.calibration.measured import recordings
from tests.calibration.page import table, with_table
from tests.conftest import CORPUS, REPOSITORY

PAGE = REPOSITORY / "docs" / "compile-model.md"
CURVES_FILE = REPOSITORY / "perfscope" / "analyzers" / "predict" / "curves.py"


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the page; 4 without the corpus."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true", help="fit the curves again first")
    asked = parser.parse_args(argv)
    try:
        measured = recordings(CORPUS)
    except FileNotFoundError as missing:
        print(f"{missing} is not there; set PERFSCOPE_CORPUS", file=sys.stderr)
        return 4
    curves = fitted(measured) if asked.fit else CURVES
    if asked.fit:
        files = [file for files in PROGRAMS.values() for file in files]
        CURVES_FILE.write_text(source(curves, files, datetime.now(UTC).date().isoformat()), encoding="utf-8")
    text = table(measured, curves)
    print(text)
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
