"""False alarms of a history: launches of one program, recorded by ``compare_aa.py``, as if each were a commit.

python benchmarks/history_aa.py launches.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from perfscope.plugins.history.series import WINDOW, change_points, fence

LENGTHS = (30, 60, 100)
SHUFFLES = 300
STRIDE = 5
WARM_UP = 2
"""Steps of each launch that are left out, as `perfscope run` does."""


def main(file: Path) -> None:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    steps = [np.array(row["step_ns"][WARM_UP:], float) for row in rows if row["code"] == 0]
    values = np.array([np.median(one) for one in steps])
    rng = np.random.default_rng(0)
    print(f"{len(values)} launches, the standard deviation of their medians is {values.std() / values.mean():.0%}")
    for length in LENGTHS:
        windows = [values[start : start + length] for start in range(0, len(values) - length + 1, STRIDE)]
        found = np.mean([bool(change_points(one)) for one in windows])
        shuffled = np.mean([bool(change_points(rng.permutation(values)[:length])) for _ in range(SHUFFLES)])
        print(f"{length} runs: a change of level in {found:.0%} of {len(windows)} windows, shuffled {shuffled:.1%}")
    told = [fence(values[place - WINDOW - 1 : place + 1]) for place in range(WINDOW + 1, len(values))]
    outside = np.mean([one is not None and one.outside for one in told])
    print(f"the newest run outside of its fence: {outside:.1%} of {len(told)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
