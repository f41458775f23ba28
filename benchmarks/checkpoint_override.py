"""``perfscope compile --checkpoint``: programs whose policy was set from outside, against those that have a flag.

    python benchmarks/checkpoint_override.py OUT                   compiles what is not in OUT yet, prints the table
    python benchmarks/checkpoint_override.py OUT --size tiny --only attention
    python benchmarks/checkpoint_override.py OUT --table --write   only reads OUT; writes the table into docs/memory.md

The JAX workloads have ``--policy none, full, dots``. Each is compiled for an H100 (the transformer for eight) with its
own flag, and once more with another flag and the same policy from ``--checkpoint``. If the option works like the flag,
peak and arithmetic are equal. Nothing is run, and no time is measured. Needs the compiler (`perfscope doctor`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfscope.analyzers.devices.target_text import parse_target
from perfscope.analyzers.hlo.buffers import assigned_memory
from perfscope.analyzers.hlo.cost.module import hlo_costs
from perfscope.analyzers.readers.hlo import proto
from perfscope.model.documents import compile_manifest
from perfscope.plugins.ahead.command import request_of
from perfscope.plugins.ahead.common.compile import NothingCompiledError, compile_program

PAGE = Path(__file__).parents[1] / "docs" / "memory.md"
BEGIN, END = "<!-- benchmarks/checkpoint_override.py writes from here -->", "<!-- until here -->"
WORKLOADS = {
    "attention": ("h100", ("--device", "gpu")),
    "moe": ("h100", ("--device", "gpu")),
    "ssm": ("h100", ("--device", "gpu")),
    "transformer": ("h100x8", ("--device", "gpu")),
}
"""Module -> target, arguments."""
PAIRS = (("none", "full"), ("none", "dots"), ("full", "none"), ("dots", "none"))
"""The program's own flag, and what ``--checkpoint`` makes of it."""
SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """One compiled step: bytes, FLOPs of one run on one device."""

    peak: int
    flops: int
    recomputed: int
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One program whose policy was set from outside, and the one that has it by its flag; None: not compiled."""

    workload: str
    source: str
    policy: str
    own: Compiled | None
    override: Compiled | None


def compile_missing(out: Path, size: str, only: Sequence[str]) -> None:
    """Compile what the table needs and ``out`` does not have."""
    for workload, (target, arguments) in WORKLOADS.items():
        if only and workload not in only:
            continue
        words = (f"perfscope.workloads.jax.{workload}", "--size", size, *arguments)
        for policy in ("none", "full", "dots"):
            _compile(out, f"{workload}-{size}-{policy}", target, (*words, "--policy", policy), None)
        for source, policy in PAIRS:
            _compile(out, f"{workload}-{size}-{source}-to-{policy}", target, (*words, "--policy", source), policy)


def _compile(out: Path, name: str, target: str, words: tuple[str, ...], checkpoint: str | None) -> None:
    if _folder(out, name) is not None:
        return
    request = request_of(
        words, module=True, framework="jax", target=parse_target(target), functions=("step",), checkpoint=checkpoint,
        seconds=SECONDS,
    )  # fmt: skip
    try:
        folder = compile_program(request, root=out / name, name=name)
    except NothingCompiledError as error:
        print(f"{name}: {error}", flush=True)
    else:
        print(f"{name}: {compile_manifest.load(folder).seconds:.0f} s", flush=True)


def _folder(out: Path, name: str) -> Path | None:
    """The complete run of a name."""
    for path in sorted((out / name).glob(f"*/{compile_manifest.FILE}")):
        manifest = compile_manifest.load(path.parent)
        if not path.parent.is_symlink() and manifest.complete and manifest.programs:
            return path.parent
    return None


def rows(out: Path, size: str) -> Iterator[Row]:
    """A row for each pair of which one program is there."""
    for workload in WORKLOADS:
        for source, policy in PAIRS:
            own = _compiled(out, f"{workload}-{size}-{policy}")
            override = _compiled(out, f"{workload}-{size}-{source}-to-{policy}")
            if own is not None or override is not None:
                yield Row(workload=workload, source=source, policy=policy, own=own, override=override)


def _compiled(out: Path, name: str) -> Compiled | None:
    folder = _folder(out, name)
    if folder is None:
        return None
    (program,) = compile_manifest.load(folder).programs
    trace = proto.read(folder / program.file)
    memory = assigned_memory(trace.hlo[0])
    assert memory is not None
    cost = trace.fact(hlo_costs)[0]
    again = cost.phases.get("recompute")
    return Compiled(
        peak=memory.peak_bytes,
        flops=cost.total.flops,
        recomputed=0 if again is None else again.flops,
        fingerprint=program.fingerprint,
    )


def table(found: Sequence[Row]) -> str:
    """Markdown: a line a pair."""
    lines = [
        "| workload | `--policy` | `--checkpoint` | peak with its own flag | with `--checkpoint` | difference "
        "| FLOPs with its own flag | with `--checkpoint` | recomputed, each | same program |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    return "\n".join([*lines, *(_line(row) for row in found)])


def _line(row: Row) -> str:
    own, override = row.own, row.override
    head = f"| {row.workload} | {row.source} | {row.policy} |"
    if own is None or override is None:
        return f"{head} {_bytes(own)} | {_bytes(override)} | not compiled | | | | |"
    same = "yes" if own.fingerprint == override.fingerprint else "no"
    again = f"{own.recomputed / 1e9:,.1f} G, {override.recomputed / 1e9:,.1f} G"
    return (
        f"{head} {own.peak:,} | {override.peak:,} | {_share(own.peak, override.peak)} | {own.flops / 1e9:,.1f} G "
        f"| {override.flops / 1e9:,.1f} G | {again} | {same} |"
    )


def _bytes(one: Compiled | None) -> str:
    return "-" if one is None else f"{one.peak:,}"


def _share(own: int, override: int) -> str:
    return "0" if own == override else f"{100 * (override / own - 1):+.3f}%"


def main() -> None:
    """Compiles, prints, and with ``--write`` writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", default="gpu")
    parser.add_argument("--only", action="append", choices=WORKLOADS, default=[])
    parser.add_argument("--table", action="store_true", help="compile nothing")
    parser.add_argument("--write", action="store_true", help="write the table into docs/memory.md")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    if not asked.table:
        compile_missing(asked.out, asked.size, asked.only)
    made = table(list(rows(asked.out, asked.size)))
    print(made)
    if asked.write:
        head, _, rest = PAGE.read_text().partition(BEGIN)
        _, _, tail = rest.partition(END)
        PAGE.write_text(f"{head}{BEGIN}\n\n{made}\n\n{END}{tail}")


if __name__ == "__main__":
    main()
