"""Lays the model of kernel times beside measured kernels of recordings of others.

make calibration                    prints the table and writes it into docs/compile-model.md
python -m tests.calibration --fit   fits the curves again and writes perfscope/analyzers/predict/curves.py first
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from perfscope.analyzers.predict import curves, efficiency
from tests.calibration.files import FITTED, UNSEEN
from tests.calibration.fit import fitted, source
from tests.calibration.measured import recording
from tests.calibration.page import table, with_table
from tests.conftest import CORPUS, REPOSITORY

PAGE = REPOSITORY / "docs" / "compile-model.md"
CURVES = REPOSITORY / "perfscope" / "analyzers" / "predict" / "curves.py"


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the page; 4 without the corpus."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true", help="fit the curves again first")
    asked = parser.parse_args(argv)
    missing = [file for file in (*FITTED, *UNSEEN) if not (CORPUS / file).exists()]
    if missing:
        print(f"{CORPUS / missing[0]} is not there; set PERFSCOPE_CORPUS", file=sys.stderr)
        return 4
    seen = [recording(CORPUS, file) for file in FITTED]
    if asked.fit:
        CURVES.write_text(source(fitted(seen), FITTED, datetime.now(UTC).date().isoformat()), encoding="utf-8")
        efficiency.CURVES = importlib.reload(curves).CURVES
    text = table(seen, [recording(CORPUS, file) for file in UNSEEN])
    print(text)
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
