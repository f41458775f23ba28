"""``python -m tests.fuzz``: exit code 1 if any input crashed, hung or took too much memory."""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

from tests.fuzz.rounds import fuzz
from tests.fuzz.seeds import FORMATS, seeds


def main() -> int:
    """Fuzz, print a table and where failures are kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=2_000, help="of each reader [2000]")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after them, with a piece done")
    parser.add_argument("--first", type=int, default=0, help="number of the first: others than before [0]")
    parser.add_argument("--readers", nargs="+", choices=sorted(FORMATS), default=sorted(FORMATS))
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"), help="folder for failures [fuzz-failures]")
    asked = parser.parse_args()
    results = {}
    end = time.monotonic() + asked.minutes * 60
    for results in fuzz(asked.readers, asked.inputs, asked.keep, first=asked.first):
        print(f"\r{sum(result.inputs for result in results.values()):,} inputs", end="", file=sys.stderr, flush=True)
        if time.monotonic() > end:
            break
    print(file=sys.stderr)
    ways = ("analysed", "refused", "crash", "hang", "memory", "died")
    print(f"{'reader':<22} {'seeds':>6} {'inputs':>9}", *(f"{way:>9}" for way in ways))
    for reader, result in results.items():
        counts = (f"{result.ended[way]:>9,}" for way in ways)
        print(f"{reader:<22} {len(seeds(reader)):>6} {result.inputs:>9,}", *counts)
    failures = [path for result in results.values() for path in result.failures]
    for path in failures:
        print(f"{path}: {path.with_name(f'{path.name}.reason').read_text().strip().splitlines()[-1][:160]}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
