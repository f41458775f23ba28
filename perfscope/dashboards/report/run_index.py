"""Index of a run folder: what each file is, and what opens it (``README.md``, written by `perfscope run`)."""

from __future__ import annotations

import shlex
from fnmatch import fnmatchcase
from pathlib import Path

from perfscope.model.documents.run_folders import RUNS_FOLDER

NAME = "README.md"

MOST_FILES = 20_000
"""Files that are looked at: a job of a thousand ranks has fewer."""

_PERFETTO = "ui.perfetto.dev"
_FILES: tuple[tuple[str, str, str], ...] = (
    ("report.html", "the report: findings, account of the step, tables", "a browser"),
    ("report.json", "the same as data", "any reader of JSON (docs/report-schema.json)"),
    ("run.json", "manifest of the run: command, machine, versions, passes", "any editor"),
    ("run-task*.json", "manifest of the processes of one task of the job", "any editor"),
    ("rank*/process.json", "manifest of one process: steps, passes, settings", "any editor"),
    ("rank*/timing.pt.trace.json.gz", "timing pass of torch.profiler: all times come from it", _PERFETTO),
    ("rank*/detail.pt.trace.json.gz", "detail pass: shapes, memory, Python stacks; its times are not used", _PERFETTO),
    ("rank*/*.pt.trace.json.gz", "a later recording of torch.profiler", _PERFETTO),
    (
        "rank*/structure.opgraph.json.gz",
        "op graph of one step: storages, bytes, FLOPs, lines",
        "`perfscope analyze RUN`",
    ),
    ("rank*/tensors.json.gz", "parameters, gradients and optimizer state", "`perfscope analyze RUN`"),
    ("rank*/timing.xplane.pb", "timing pass of jax.profiler: all times come from it", "XProf, TensorBoard"),
    ("rank*/plugins/*.xplane.pb", "the same, where TensorBoard looks for it", "`tensorboard --logdir RANK`"),
    ("rank*/hlo/*.hlo.pb", "an XLA program after all passes (HloProto)", "`perfscope analyze FILE`, Model Explorer"),
    ("rank*/events.jsonl", "compilations and retraces of jax", "any editor"),
    ("rank*/syncs.jsonl", "reads of jax arrays by the host", "any editor"),
    ("rank*/memory/*.prof", "memory profile of jax before and after the timing pass", "`pprof`"),
    ("rank*/*memory*.pickle*", "snapshot of torch's allocator", "pytorch.org/memory_viz"),
    ("rank*/out_of_memory.pickle.gz", "snapshot when memory ran out", "pytorch.org/memory_viz, once unpacked"),
    (
        "rank*/compile/*",
        "log of torch.compile: graphs, breaks, guards, output code",
        "`tlparse`, `perfscope lower RUN`",
    ),
    (
        "rank*/stacks*.json.gz",
        "sampled Python stacks of the process",
        "`perfscope export RUN --to speedscope`",
    ),
    (
        "rank*/counters.json.gz",
        "all steps, waits for a core, memory, storage, saves, evaluations",
        "`perfscope query RUN`",
    ),
    ("workers/*.stacks.json.gz", "the same of worker processes", "`perfscope export RUN --to speedscope`"),
    ("rank*/*.json.gz", "recording of a plug-in, such as numerics", "`perfscope analyze RUN`"),
    ("xla-dump*/*", "each XLA program before, between and after passes", "`perfscope lower RUN --stages`"),
    ("*.nsys-rep", "recording of Nsight Systems", "`nsys-ui`"),
    ("*.sqlite", "the same as tables", "`perfscope analyze`, sqlite3"),
    ("ledger/*", "ledger of the whole job", "`perfscope job RUN`"),
    ("failures.txt", "errors of perfscope in the processes", "any editor"),
)
"""Pattern of the path in the run folder, meaning, and what opens it; the first that matches counts."""


def index_of(directory: Path) -> str:
    """Return the index of a run folder as Markdown; files of the same kind are one row."""
    counts: dict[str, list[str]] = {}
    files = sorted(path.relative_to(directory).as_posix() for path in _files(directory))
    for name in files:
        pattern = next((row[0] for row in _FILES if fnmatchcase(name, row[0])), None)
        if pattern is not None:
            counts.setdefault(pattern, []).append(name)
    shown = "\n".join(
        f"| {_names(pattern, counts[pattern])} | {meaning} | {opens} |"
        for pattern, meaning, opens in _FILES
        if pattern in counts
    )
    parent = f"{RUNS_FOLDER}/" if directory.parent.name == RUNS_FOLDER else ""
    run = shlex.quote(f"{parent}{directory.name}")  # no folder of the machine
    return f"""# {directory.name}

A run of `perfscope run`. Start with `report.html`.

| file | content | opened by |
| --- | --- | --- |
{shown}

| for | command |
| --- | --- |
| evidence and advice of every finding | `perfscope analyze -v {run}` |
| pages: timeline, memory, programs, lines | `perfscope serve {run}` |
| all ranks on one timeline, with a track of findings, for ui.perfetto.dev | `perfscope export {run} --to perfetto` |
| each line at each stage of the compiler, HLO before and after passes | {_lowered(directory, run)} |
| SQL over all tables | `perfscope query {run}` |
| what changed since another run | `perfscope compare OTHER {run}` |
"""


def write_index(directory: Path) -> None:
    """Write the index into a run folder."""
    (directory / NAME).write_text(index_of(directory), encoding="utf-8")


def _files(directory: Path) -> list[Path]:
    found: list[Path] = []
    for path in directory.rglob("*"):
        if len(found) >= MOST_FILES:
            break
        if path.is_file() and not path.name.startswith("."):
            found.append(path)
    return found


def _names(pattern: str, names: list[str]) -> str:
    """One file by its name; several by their pattern and number."""
    if len(names) == 1:
        return f"`{names[0]}`"
    return f"`{pattern}`, {len(names):,} files"


def _lowered(directory: Path, run: str) -> str:
    """The command on the run if it holds stages of programs, else on the program as it was started, as Markdown."""
    dumped = any(directory.glob("xla-dump*")) or any(directory.glob("rank*/compile"))
    if dumped:
        return f"`perfscope lower --stages {run}`"
    return "`perfscope lower --stages PROGRAM ARGS...`, or of this run after `perfscope run --xla-dump`"
