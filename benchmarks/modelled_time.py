"""Modelled against measured time: every recording of the corpus that holds its programs and ran on a known device.

::

    PERFSCOPE_CORPUS=... python benchmarks/modelled_time.py            # prints the tables of docs/compile-model.md

The recordings name their device, but for those of MI300X, which their catalogue does.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from perfscope.analyzers.devices import named_device
from perfscope.analyzers.devices.target import Target
from perfscope.analyzers.hlo.program import program_labels
from perfscope.analyzers.predict import estimate
from perfscope.analyzers.predict.calibration import Calibration, InstructionError, calibrate, groups_of
from perfscope.analyzers.readers.load import load_all
from perfscope.model.units import format_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A recording and the machine it was made on."""

    file: str
    device: str
    topology: tuple[int, ...]
    """GPUs: (nodes, devices of a node); TPUs: chips along each axis."""


CASES = (
    Case(file="nsys_jax/JAX-Toolbox__maxtext_fsdp4_test_data.zip", device="H100 SXM", topology=(1, 4)),
    Case(file="xplane/TraceLens__mi300_jax08_gemm.xplane.pb.gz", device="MI300X", topology=(1, 1)),
    Case(file="xplane/TraceLens__mi300_jax_conv_08.xplane.pb.gz", device="MI300X", topology=(1, 8)),
    Case(file="xplane/xprof__tpu_inference_2.xplane.pb.gz", device="TPU v6e", topology=(2, 4)),
)


def target_of(case: Case) -> Target:
    """The machine as a target."""
    device = named_device(case.device)
    assert device is not None
    count = 1
    for size in case.topology:
        count *= size
    return Target(
        asked=case.device,
        device=device,
        count=count,
        topology=case.topology,
        platform="tpu" if device.vendor == "Google" else "gpu",
        memory_bytes=device.memory_bytes,
    )


def calibrations(corpus: Path, case: Case) -> Iterator[tuple[str, Calibration]]:
    """(label of the program, model against run) of every program of a recording that ran in it."""
    with tempfile.TemporaryDirectory() as unpacked:
        path = corpus / case.file
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                archive.extractall(unpacked)
            path = Path(unpacked)
        (trace,) = load_all(path)
        target = target_of(case)
        for module, label in zip(trace.hlo, program_labels(trace.hlo), strict=True):
            found = calibrate(estimate(module, target), module, trace)
            if found is not None:
                yield label, found


def held_out(found: Calibration) -> Iterator[str]:
    """Rows of a table: half of the instructions of each kind, priced by what the other half reached.

    Halves by a hash of the name, copies of an instruction in the same one; scatters left out.
    """
    halves: tuple[list[InstructionError], list[InstructionError]] = ([], [])
    for one in found.instructions:
        if not one.row.contended:
            halves[crc32(_COPY.sub("", one.row.computation + one.row.name).encode()) % 2].append(one)
    held, fitted = halves
    for fit in groups_of(fitted):
        members = [one for one in held if one.group == fit.group]
        measured = sum(one.measured_ns * one.row.runs for one in members)
        low, high = (
            sum(end) for end in zip(*((one.row.total.low, one.row.total.high) for one in members), strict=True)
        )
        yield (
            f"| {fit.group} | {fit.instructions} | {len(members)} | {format_ns(measured)} | {format_ns(low)} to "
            f"{format_ns(high)} | {format_ns(low / fit.high_share)} to {format_ns(low / fit.low_share)} |"
        )


def main() -> int:
    """Prints the tables as Markdown."""
    corpus = Path(os.environ.get("PERFSCOPE_CORPUS", ""))
    if not (corpus / CASES[0].file).is_file():
        print("no corpus: set PERFSCOPE_CORPUS", file=sys.stderr)
        return 2
    groups: list[str] = []
    halves: list[str] = []
    print("| recording | program | measured | low | high | inside | measured / low | measured / high |")
    print("|-|-|-:|-:|-:|-|-:|-:|")
    for case in CASES:
        for label, one in calibrations(corpus, case):
            run, low, high = one.run.step_ns, one.modelled.low, one.modelled.high
            print(
                f"| {target_of(case).shown} | `{label}` | {format_ns(run)}{'' if one.run.apart else ' (busy)'} | "
                f"{format_ns(low)} | {format_ns(high)} | {'yes' if one.inside else '**no**'} | "
                f"{run / max(1, low):.2f} | {run / max(1, high):.2f} |"
            )
            if len(one.instructions) > MANY:
                halves += held_out(one)
            if len(one.instructions) > FEW:
                groups += [
                    f"| `{label}` | {group.group} | {group.instructions:,} | {format_ns(group.measured_ns)} | "
                    f"{format_ns(group.modelled.low)} | {format_ns(group.modelled.high)} | "
                    f"{group.inside / group.instructions:.0%} | {group.share:.0%} |"
                    for group in one.groups
                ]
    print("\n| program | instructions | measured ones | measured | low | high | inside | low / measured |")
    print("|-|-|-:|-:|-:|-:|-:|-:|")
    print("\n".join(groups))
    print("\n| instructions | fitted on | held out | measured | modelled | by the other half |\n|-|-:|-:|-:|-|-|")
    print("\n".join(halves))
    return 0


FEW, MANY = 20, 200
"""Instructions up to which a program has no separate table, and is not divided."""

_COPY = re.compile(r"\.(double_buffer_clone|peeled_double_buffer)$")

if __name__ == "__main__":
    sys.exit(main())
