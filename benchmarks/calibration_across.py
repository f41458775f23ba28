"""Whether corrections from measured runs apply to other programs: each program of the corpus is held out in turn.

::

    PYTHONPATH=. PERFSCOPE_CORPUS=... python benchmarks/calibration_across.py  # the table of docs/compile-model.md

Instructions of a program are priced by the efficiency of their class in all *other* programs of the same device:
the median position of each in its own range (0: the low end, 1: the high end, by ratio). Programs of the same
instructions as the one held out are left out with it; scatters, whose time only data tells, are in neither.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.modelled_time import CASES, calibrations
from perfscope.analyzers.predict.calibration import FEWEST, Calibration, Group, InstructionError

GROUPS: tuple[Group, ...] = ("products", "memory-bound", "collectives", "launches", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Instructions of a class of one program, priced by the other programs. Errors are factors; 1 means no error."""

    instructions: int
    before: float
    """Median over instructions: middle of the modelled range against the measured time."""
    after: float
    inside_before: int
    inside_after: int
    """In the middle half of the others."""


def place(one: InstructionError, share: float) -> float:
    """Time at a share of an instruction's own range."""
    once = one.row.once
    return float(once.low * (once.high / once.low) ** share)


def share(one: InstructionError) -> float:
    """Where in its own range an instruction lay."""
    once = one.row.once
    return math.log(one.measured_ns / once.low) / math.log(once.high / once.low)


def off(one: InstructionError, said: float) -> float:
    """The factor between a predicted and the measured time."""
    return math.exp(abs(math.log(said / one.measured_ns)))


def members(found: Calibration, group: Group) -> list[InstructionError]:
    """Instructions of a class that have a range and a time."""
    return [
        one
        for one in found.instructions
        if one.group == group and not one.row.contended and one.measured_ns > 0 and one.row.once.high > one.row.once.low
    ]


def content(found: Calibration) -> tuple[tuple[str, int, int], ...]:
    """The content of a program, whatever its instructions are called."""
    return tuple(sorted((one.row.opcode, one.row.once.low, one.row.once.high) for one in found.instructions))


def held_out(programs: Sequence[Calibration], group: Group) -> Iterator[Held | None]:
    """Each program that has instructions of the class; ``None`` where the others have too few to say anything."""
    for program in programs:
        mine = members(program, group)
        if not mine:
            continue
        others = [one for one in programs if one is not program and content(one) != content(program)]
        shares = [share(one) for other in others for one in members(other, group)]
        if len(shares) < FEWEST:
            yield None
            continue
        low, middle, high = statistics.quantiles(shares, n=4, method="inclusive")
        yield Held(
            instructions=len(mine),
            before=statistics.median(off(one, place(one, 0.5)) for one in mine),
            after=statistics.median(off(one, place(one, middle)) for one in mine),
            inside_before=sum(one.inside for one in mine),
            inside_after=sum(place(one, low) <= one.measured_ns <= place(one, high) for one in mine),
        )


def main() -> int:
    """Prints the table as Markdown."""
    corpus = Path(os.environ.get("PERFSCOPE_CORPUS", ""))
    if not (corpus / CASES[0].file).is_file():
        print("no corpus: set PERFSCOPE_CORPUS", file=sys.stderr)
        return 2
    devices: dict[str, list[Calibration]] = {}
    for case in CASES:
        devices.setdefault(case.device, []).extend(found for _, found in calibrations(corpus, case))
    print("| device | class | programs held out | instructions | median error, model | by the others | nearer in | "
          "inside, model | by the others |\n|-|-|-:|-:|-:|-:|-:|-:|-:|")  # fmt: skip
    for device, programs in devices.items():
        for group in GROUPS:
            every = list(held_out(programs, group))
            told = [one for one in every if one is not None]
            if not every:
                continue
            if not told:
                print(f"| {device} | {group} | {len(every)} | | not to be held out: the others have too few | | | | |")
                continue
            print(
                f"| {device} | {group} | {len(told)} | {sum(one.instructions for one in told)} | "
                f"x{statistics.median(one.before for one in told):.2f} | "
                f"x{statistics.median(one.after for one in told):.2f} | "
                f"{sum(one.after < one.before for one in told)} of {len(told)} | "
                f"{sum(one.inside_before for one in told)} | {sum(one.inside_after for one in told)} |"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
