"""Lays the model of kernel times beside measured kernels of recordings of others.

make calibration                        prints the table and writes it into docs/compile-model.md
python -m tools.calibration --fit       fits the curves again and writes perfscope/analyzers/predict/curves.py first
python -m tools.calibration --sources   prints the commands that fetch the recordings

Where recordings are absent, those that are there are judged, and nothing is written.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from perfscope.analyzers.predict.curves import CURVES
from tools.calibration.files import SOURCES, absent, commands
from tools.calibration.fit import fitted, source
from tools.calibration.measured import recordings
from tools.calibration.page import table, with_table

REPOSITORY = Path(__file__).resolve().parents[2]
CORPUS = Path(os.environ.get("PERFSCOPE_CORPUS", REPOSITORY.parent / "shared" / "data"))
PAGE = REPOSITORY / "docs" / "compile-model.md"
CURVES_FILE = REPOSITORY / "perfscope" / "analyzers" / "predict" / "curves.py"


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the page; 4 without any recording."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true", help="fit the curves again first")
    parser.add_argument("--sources", action="store_true", help="print the commands that fetch the recordings, and end")
    asked = parser.parse_args(argv)
    if asked.sources:
        print(commands(SOURCES))
        return 0
    missing = absent(CORPUS)
    if missing:
        files = ", ".join(source.file for source in missing)
        print(f"absent below {CORPUS}, so nothing is written (--sources says where from): {files}", file=sys.stderr)
    if len(missing) == len(SOURCES):
        return 4
    measured = recordings(CORPUS)
    curves = fitted(measured) if asked.fit else CURVES
    if asked.fit and not missing:
        files = [source.file for source in SOURCES]
        CURVES_FILE.write_text(source(curves, files, datetime.now(UTC).date().isoformat()), encoding="utf-8")
    text = table(measured, curves)
    print(text)
    if not missing:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
