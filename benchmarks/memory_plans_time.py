"""Predicted changes of a step's time under another checkpoint policy, against the program compiled with the policy.

    python benchmarks/memory_plans_time.py FOLDER [FOLDER ...] [--write]

The folders are those of ``benchmarks/memory_plans_jax.py``. Both sides are modelled by the same peaks of the device:
the time of the current program plus the predicted change, against the time of the program that XLA compiled with the
policy. Nothing is run. ``--write`` puts the table into docs/memory.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from memory_plans_jax import ENDING, POLICIES, SOURCES, _models

from perfscope.analyzers.hlo.cost.module import hlo_costs
from perfscope.analyzers.programs.saving import once_ns
from perfscope.analyzers.readers.hlo import proto
from perfscope.model.trace import Trace
from perfscope.plugins.memory_advice.simulate import Simulator, todays

DOCS = Path(__file__).resolve().parent.parent / "docs" / "memory.md"
BEGIN, END = "<!-- benchmarks/memory_plans_time.py writes from here -->", "<!-- to here -->"
NO_CHANGE = 0.03
"""Share of a step below which the sign of a change is not worth predicting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One prediction. Times in ms of one run."""

    program: str
    source: str
    policy: str
    today: float
    predicted: float
    compiled: float

    @property
    def error(self) -> float:
        """As a share of the compiled program's time."""
        return self.predicted / self.compiled - 1

    @property
    def has_sign(self) -> bool:
        """Whether the compiled change is large enough to be quicker or slower."""
        return abs(self.compiled - self.today) > NO_CHANGE * self.today

    @property
    def right(self) -> bool:
        """Whether the sign of the change was predicted correctly."""
        return (self.predicted - self.today) * (self.compiled - self.today) > 0


def step_ms(trace: Trace) -> float:
    """Modelled time of one run of the first program."""
    times = trace.fact(once_ns)
    rows = trace.fact(hlo_costs)[0].launched
    return sum(times.get((0, row.computation, row.instruction.name), 0.0) * row.runs for row in rows) / 1e6


def rows(folders: Sequence[Path]) -> Iterator[Row]:
    """A row for each pair of programs of one step with layers in a loop."""
    groups: dict[str, dict[str, Path]] = {}
    for path in sorted(path for folder in folders for path in folder.glob(f"*{ENDING}")):
        stem, _, policy = path.name.removesuffix(ENDING).rpartition("-")
        if policy in SOURCES and "unrolled" not in stem and "listed" not in stem:
            groups.setdefault(stem, {})[policy] = path
    for stem, members in groups.items():
        traces = {policy: proto.read(path) for policy, path in members.items()}
        times = {policy: step_ms(trace) for policy, trace in traces.items()}
        for source, trace in traces.items():
            for model in _models(trace):
                simulator = Simulator(model)
                base = simulator.run(todays(model)).work_ns
                for policy in (one for one in traces if one in POLICIES and one != source):
                    offered = all(region.offers(POLICIES[policy]) for region in model.regions)
                    if not offered or (source != "none" and policy != "none"):
                        continue
                    added = simulator.run([POLICIES[policy]] * len(model.regions)).work_ns - base
                    yield Row(
                        program=stem,
                        source=source,
                        policy=policy,
                        today=times[source],
                        predicted=times[source] + added / 1e6,
                        compiled=times[policy],
                    )


def table(found: Sequence[Row]) -> str:
    """Markdown: a line a prediction, and how many were quicker or slower as predicted."""
    lines = [
        "| step | from | to | today ms | predicted ms | compiled ms | error |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row.program} | {row.source} | {row.policy} | {row.today:.2f} | {row.predicted:.2f} | {row.compiled:.2f} "
        f"| {100 * row.error:+.0f}% |"
        for row in found
    ]
    told = [row for row in found if row.has_sign]
    right = sum(row.right for row in told)
    near = sum(abs(row.error) <= 0.1 for row in found)
    lines += [
        "",
        f"{near} of {len(found)} within 10% of the compiled step; of the {len(told)} that change it by more than "
        f"{100 * NO_CHANGE:.0f}%, {right} are quicker or slower as predicted.",
    ]
    return "\n".join(lines)


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    made = table(list(rows(asked.folders)))
    print(made)
    if asked.write:
        text = DOCS.read_text()
        before, rest = text.split(BEGIN, 1)
        DOCS.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{rest.split(END, 1)[1]}")


if __name__ == "__main__":
    main()
