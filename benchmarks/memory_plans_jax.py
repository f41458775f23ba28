"""Checkpoint policies of compiled JAX programs: predicted from a program without the policy, against the compiled one.

    python benchmarks/memory_plans_jax.py fixtures/h100-programs
    python benchmarks/memory_plans_jax.py FOLDER [FOLDER ...]        what fixtures/compile_h100.py --all wrote
    python benchmarks/memory_plans_jax.py FOLDER --shipped           what fixtures/compile_h100.py --shipped wrote

Programs of one step are those whose file names differ by their last word, the policy (and how many layers have it).
From each program that keeps everything the peak and the recomputed arithmetic of ``full`` and ``dots`` are predicted,
and from each that is checkpointed the peak of keeping everything. Nothing is run, and no time is measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfscope.analyzers.hlo.buffers import assigned_memory
from perfscope.analyzers.readers.hlo import proto
from perfscope.model.finding import AbstainError
from perfscope.model.trace import Trace
from perfscope.plugins.memory_advice.simulate import Simulator
from perfscope.plugins.memory_advice.step_model import Policy, StepModel
from perfscope.plugins.memory_advice.step_model_hlo import hlo_step_models, predicted_recompute, recomputed_flops

POLICIES: dict[str, Policy] = {"none": "keep", "full": "full", "dots": "selective"}
SOURCES = (*POLICIES, "names")
"""A program without ``names`` allows no prediction for one with it; the reverse does."""
ENDING = ".hlo.pb.xz"
KINDS = {"loop": ("scan", "halves"), "layers with a scope each": ("unrolled", "listed")}
HELD_OUT = ("unrolled-fresh", "listed-fresh")
"""Ends of the names of steps that were compiled when the estimate was finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One prediction. Bytes, FLOPs of one run."""

    program: str
    source: str
    policy: str
    predicted: int
    compiled: int
    predicted_flops: int
    compiled_flops: int

    @property
    def error(self) -> float:
        """Error of the peak, as a share of the compiled one."""
        return self.predicted / self.compiled - 1


def rows(folders: Sequence[Path]) -> Iterator[Row]:
    """A row for each pair of programs of one step."""
    groups: dict[str, dict[str, Path]] = {}
    for path in sorted(path for folder in folders for path in folder.glob(f"*{ENDING}")):
        stem, _, policy = path.name.removesuffix(ENDING).rpartition("-")
        if policy in SOURCES:
            groups.setdefault(stem, {})[policy] = path
    for stem, members in groups.items():
        traces = {policy: proto.read(path) for policy, path in members.items()}
        models = {policy: found for policy, trace in traces.items() for found in _models(trace)}
        peaks = {policy: _peak(trace) for policy, trace in traces.items()}
        again = {policy: recomputed_flops(trace, 0) for policy, trace in traces.items()}
        for source, model in models.items():
            for policy in traces:
                keeps_all = policy == "none"
                if policy == source or policy not in POLICIES or (source != "none" and not keeps_all):
                    continue
                if not _has(model, POLICIES[policy]):
                    continue
                added = predicted_recompute(traces[source], 0, POLICIES[policy])
                assert added is not None
                yield Row(
                    program=stem,
                    source=source,
                    policy=policy,
                    predicted=Simulator(model).run([POLICIES[policy]] * len(model.regions)).peak_bytes,
                    compiled=peaks[policy],
                    predicted_flops=added,
                    compiled_flops=again[policy],
                )


def partial_rows(folders: Sequence[Path]) -> Iterator[tuple[str, int, int, int]]:
    """Programs with a policy for their first layers: name, how many, bytes predicted without it and compiled."""
    for path in sorted(path for folder in folders for path in folder.glob(f"*-first*{ENDING}")):
        stem, policy, first = path.name.removesuffix(ENDING).rsplit("-", 2)
        count = int(first.removeprefix("first"))
        for source in (folder / f"{stem}-none{ENDING}" for folder in folders):
            for model in _models(proto.read(source)) if source.is_file() else ():
                keep: Policy = "keep"
                policies = [POLICIES[policy] if at < count else keep for at in range(len(model.regions))]
                yield f"{stem}-{policy}", count, Simulator(model).run(policies).peak_bytes, _peak(proto.read(path))


def _models(trace: Trace) -> tuple[StepModel, ...]:
    """That of the program; none where no layers are found in it."""
    try:
        return hlo_step_models(trace)
    except AbstainError:
        return ()


def _peak(trace: Trace) -> int:
    timeline = assigned_memory(trace.hlo[0])
    assert timeline is not None
    return timeline.peak_bytes


def _has(model: StepModel, policy: Policy) -> bool:
    return policy in dict(model.regions[0].changes)


def table(found: Sequence[Row]) -> str:
    """Markdown: a line a step."""
    lines = [
        "| step | peak of `none`, `full`, `dots` | `full` from `none` | `dots` from `none` | `none` from `full` "
        "| `none` from `dots` | `none` from `names` | recomputed FLOPs of `full`, `dots` |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for program in dict.fromkeys(row.program for row in found):
        by_pair = {(row.source, row.policy): row for row in found if row.program == program}
        peaks = {policy: row.compiled for (_, policy), row in by_pair.items()}
        pairs = (("none", "full"), ("none", "dots"), ("full", "none"), ("dots", "none"), ("names", "none"))
        errors = [f"{100 * by_pair[pair].error:+.1f}%" if pair in by_pair else "" for pair in pairs]
        again = [_again_error(by_pair[pair]) for pair in pairs[:2] if pair in by_pair]
        lines.append(
            f"| {program} | {', '.join(f'{peaks[policy] / 1e6:,.0f}' for policy in POLICIES if policy in peaks)} MB "
            f"| {' | '.join(errors)} | {', '.join(again)} |"
        )
    return "\n".join(lines)


def shipped_table(found: Sequence[Row]) -> str:
    """Markdown: a line a prediction, all numbers."""
    lines = [
        "| workload | from | to | peak predicted | peak compiled | error | recomputed FLOPs predicted "
        "| compiled | error |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row.program} | {row.source} | {row.policy} | {row.predicted:,} | {row.compiled:,} "
        f"| {100 * row.error:+.1f}% | {row.predicted_flops / 1e9:,.1f} G | {row.compiled_flops / 1e9:,.1f} G "
        f"| {_again_error(row) or '0'} |"
        for row in found
    ]
    return "\n".join(lines)


def _again_error(row: Row) -> str:
    if not row.compiled_flops:
        return ""
    return f"{100 * (row.predicted_flops / row.compiled_flops - 1):+.1f}%"


def summary(found: Sequence[Row]) -> str:
    """How many are how close: loops and single layers, less kept and everything kept, each apart; held-out programs."""
    lines = []
    for label, chosen in (
        ("all", list(found)),
        *((f"`{name}` alone", [row for row in found if row.program.endswith(f"-{name}")]) for name in HELD_OUT),
    ):
        for kind, layers in KINDS.items():
            for kept, keeps_all in (("less kept", False), ("everything kept", True)):
                errors = [
                    row.error
                    for row in chosen
                    if row.program.split("-")[-2] in layers and (row.policy == "none") is keeps_all
                ]
                if errors:
                    lines.append(f"{label}, {kind}, {kept}: {_told(errors)}")
    return "\n".join(lines)


def _told(errors: Sequence[float]) -> str:
    sizes = sorted(map(abs, errors))
    close, near = (sum(size <= limit for size in sizes) for limit in (0.05, 0.1))
    return (
        f"{close} of {len(errors)} within 5%, {near} within 10%, median {100 * sizes[len(sizes) // 2]:.1f}%, "
        f"from {100 * min(errors):+.1f}% to {100 * max(errors):+.1f}%"
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--shipped", action="store_true", help="a line a prediction, with all numbers")
    asked = parser.parse_args()
    found = list(rows(asked.folders))
    print(shipped_table(found) if asked.shipped else table(found))
    for name, count, predicted, compiled in partial_rows(asked.folders):
        print(f"{name}, the first {count}: {predicted:,} predicted, {compiled:,} compiled, "
              f"{100 * (predicted / compiled - 1):+.1f}%")  # fmt: skip
    print(summary(found))


if __name__ == "__main__":
    main()
