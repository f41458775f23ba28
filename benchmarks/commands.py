"""Cost of perfscope's own commands, as cases of `bench.py`: `run`, `compile`, `serve`, and sets of many ranks."""

from __future__ import annotations

import gzip
import os
import statistics
import sys
from pathlib import Path

import many_ranks
from runner import REPOSITORY, Case, Reader

CORPUS = Path(os.environ.get("PERFSCOPE_CORPUS", REPOSITORY.parent / "shared" / "data"))
PERFSCOPE = (sys.executable, "-m", "perfscope")
ANALYZE = (*PERFSCOPE, "analyze", "-q", "FILE")

LEVELS = ("light", "default", "deep")
PROGRAMS = {
    "attention": ("attention", "--variant", "sdpa"),
    "attention, torch.compile": ("attention", "--variant", "sdpa", "--compile"),
    "mixture of experts": ("moe", "--variant", "loop"),
    "state space model": ("ssm", "--variant", "scan"),
    "jax transformer": ("jax.attention",),
}
"""Workloads with much and little host work for each op, compiled ones, and both frameworks."""

PROGRAM = """
import os, runpy, sys, time
from pathlib import Path

sys.argv = {argv!r}
try:
    runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
finally:
    Path("out/ended").write_text(repr(time.time()))
"""
"""A workload that writes down when it was over: what comes after that is the time to stop."""

COMPILED = {
    "jax transformer, H100": ("h100", "jax.attention", "--size", "tiny", "--device", "gpu"),
    "jax state space model, H100": ("h100", "jax.ssm", "--size", "tiny", "--device", "gpu"),
    "jax transformer, TPU v5e": ("v5e", "jax.attention", "--size", "tiny", "--device", "tpu"),
    "torch transformer, H100": ("h100", "attention", "--variant", "sdpa", "--size", "tiny", "--compile"),
}
"""Target, program and its arguments."""


def _module(name: str) -> str:
    return f"perfscope.workloads.{name}"


def programs(folder: Path, small: bool) -> tuple[Path, str]:
    """A file for each workload."""
    steps = 40 if small else 200
    home = folder / "programs"
    home.mkdir()
    for number, (name, *arguments) in enumerate(PROGRAMS.values()):
        argv = [name, *arguments, "--steps", str(steps)]
        (home / f"{number}.py").write_text(PROGRAM.format(argv=argv, module=_module(name)))
    return home, f"{len(PROGRAMS)} programs of {steps} steps on a CPU"


def recorded(folder: Path) -> dict[str, float]:
    """The latest run: its untraced step, the additional time of profiled steps, its size."""
    from perfscope.analyzers.readers.load import load_one
    from perfscope.model.documents import run_folders

    home = folder / "perfscope-runs" / "latest"
    process = run_folders.read(home).processes[0]
    steps = load_one(home).rows["steps"]
    marks = {"files MB": sum(file.stat().st_size for file in home.rglob("*") if file.is_file()) / 1e6}
    if process.untraced_step_ns and len(steps):
        untraced = statistics.median(process.untraced_step_ns)
        marks["step ms"] = untraced / 1e6
        marks["x traced step"] = statistics.median((steps["end_ns"] - steps["start_ns"]).tolist()) / untraced
    return marks


def capture_readers() -> dict[str, Reader]:
    """Each workload bare and under each level of capture."""
    readers = {}
    for number, name in enumerate(PROGRAMS):
        script, alone = f"FILE/{number}.py", {"OMP_NUM_THREADS": "1"}
        readers[f"{name}: bare"] = Reader(
            command=(sys.executable, script), environment=alone, warm=True, against=f"{name}: bare"
        )
        for level in LEVELS:
            readers[f"{name}: {level}"] = Reader(
                command=(*PERFSCOPE, "run", "-q", "--no-report", "--level", level, script),
                environment=alone, against=f"{name}: bare", after=recorded,
            )  # fmt: skip
    return readers


def compile_readers() -> dict[str, Reader]:
    """`perfscope compile` of programs for machines that are not there."""
    return {
        name: Reader(command=(*PERFSCOPE, "compile", "-q", "--target", target, "-m", _module(module), *arguments))
        for name, (target, module, *arguments) in COMPILED.items()
    }


def no_file(folder: Path, small: bool) -> tuple[Path, str]:
    """The compiled program is a module of perfscope."""
    home = folder / "nothing"
    home.mkdir()
    return home, "training steps of our workloads, tiny"


def served_file(folder: Path, small: bool) -> tuple[Path, str]:
    """A real trace for the dashboard."""
    source = CORPUS / "kineto" / "HolisticTraceAnalysis__nccl_data.json.gz"
    if small:
        target = folder / "served.json"
        target.write_bytes(gzip.decompress(source.read_bytes()))
        return target, source.name
    from replicate import replicate

    return folder / "served.json", f"{source.name} {replicate(source, folder / 'served.json', 200)} times"


def ranks_folder(folder: Path, small: bool) -> tuple[Path, str]:
    """The eight real ranks of a job as the ranks of a large one."""
    ranks, home = (64 if small else 4096), folder / "ranks"
    home.mkdir()
    many_ranks.make(sorted((CORPUS / "kineto").glob("astra-sim__megatron_kineto_*")), home, ranks)
    return home, f"{ranks:,} ranks (packed)"


def rank_readers(small: bool) -> dict[str, Reader]:
    """The set and its first ranks; memory and time a rank are read from the rows together."""
    measure = (sys.executable, str(REPOSITORY / "benchmarks" / "many_ranks.py"), "FILE")
    sizes = (16, 64) if small else (64, 256, 1024, 4096)
    readers = {
        f"{size:,} ranks": Reader(command=(*measure, "--ranks", str(size)), turns=None if size < 1000 else 1)
        for size in reversed(sizes)
    }
    readers[f"{sizes[-1]:,} ranks, Dask with four workers"] = Reader(
        command=(*measure, "--dask", "4"), turns=2 if small else 1
    )
    readers["--ranks 0-7"] = Reader(command=(*ANALYZE, "--ranks", "0-7"))
    return readers


def cases(small: bool) -> list[Case]:
    """Everything that this module measures."""
    paint = (sys.executable, str(REPOSITORY / "benchmarks" / "first_paint.py"), "FILE")
    return [
        Case(key="capture", title="perfscope run", make=programs, readers=capture_readers()),
        Case(key="compile", title="perfscope compile", make=no_file, readers=compile_readers()),
        Case(key="serve", title="perfscope serve", make=served_file, readers={
            "opened for the first time": Reader(command=(*paint, "--cache", "OUT/new")),
            "opened before": Reader(command=(*paint, "--cache", "OUT/kept", "--keep"), warm=True),
        }),
        Case(key="ranks", title="ranks of a job", make=ranks_folder, readers=rank_readers(small)),
    ]  # fmt: skip
