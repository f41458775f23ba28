"""Facts that a session reads about its process: rank, devices, memory, and obstacles to a capture."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfscope.model.capture import CaptureOptions, Message
from perfscope.model.documents.run import ATTACHED_FILE, FAILURES_FILE, Process
from perfscope.profiler.jax import compat, session
from perfscope.profiler.session.passes import Pass
from perfscope.profiler.session.ranks import MOST_RANKS, rank_from_environment
from perfscope.profiler.torch import compat as torch_compat

ALLOCATOR_COUNTERS = (
    "allocated_bytes.all.current",
    "allocated_bytes.all.peak",
    "reserved_bytes.all.current",
    "reserved_bytes.all.peak",
    "inactive_split_bytes.all.current",
    "num_alloc_retries",
    "num_ooms",
)
"""Keys of ``torch.cuda.memory_stats()`` that are kept."""


def mark_attached(run: Path) -> None:
    """Leave a mark that torch or jax was imported under us."""
    (run / ATTACHED_FILE).touch()


def note_failure(run: Path, reason: str) -> None:
    """Append an error of perfscope to the run's list, one line."""
    with (run / FAILURES_FILE).open("a") as stream:
        stream.write(" ".join(reason.split())[:500] + "\n")


def inspect_process(run: Path) -> Process:
    """Facts on this process; claims its directory."""
    torch: Any = sys.modules.get("torch")
    rank, world_size = known_rank(torch)
    rank, path = _claim_directory(run, rank)
    return Process(
        rank=rank,
        pid=os.getpid(),
        world_size=world_size,
        directory=path.name,
        devices=tuple(_devices(torch)) or tuple(session.devices()),
        packages={**({} if torch is None else {"torch": str(torch.__version__)}), **session.packages()},
    )


def refresh_process(seen: Process, run: Path) -> Process:
    """The same process later, when its rank and devices are known.

    A directory under a wrong rank is replaced by one under the right rank, with its files.
    """
    torch: Any = sys.modules.get("torch")
    rank, world_size = known_rank(torch)
    seen = replace(seen, world_size=world_size, devices=tuple(_devices(torch)) or seen.devices)
    if rank is None or rank == seen.rank:
        return seen
    rank, path = _claim_directory(run, rank)
    old = run / seen.directory
    for file in old.iterdir():
        file.rename(path / file.name)
    old.rmdir()
    return replace(seen, rank=rank, directory=path.name)


def with_memory(seen: Process, purposes: Mapping[str, int]) -> Process:
    """The same with the bytes held now: memory that the trace of a window lacks, because it was allocated before.

    ``purposes``: bytes of parameters, gradients ... (`profiler/torch/tensors.py`).
    """
    return replace(seen, memory={**session.memory(), **purposes, **allocator_counters()})


def with_memory_after(seen: Process) -> Process:
    """The same with the allocator's counters of now, after the last pass."""
    return replace(seen, memory_after={**session.memory(), **allocator_counters()})


def allocator_counters() -> dict[str, int]:
    """The kept counters of the CUDA allocator; empty if CUDA is not in use. Peaks are since the start."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return {}
    counters = torch.cuda.memory_stats()
    return {key: int(counters[key]) for key in ALLOCATOR_COUNTERS if key in counters}


def wait_for_cuda() -> bool:
    """Wait for the work of torch's current device; False if torch has not begun to use one, or captures a graph."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return False
    if torch_compat.profiler_records() or torch.cuda.is_current_stream_capturing():
        return False
    torch.cuda.synchronize()
    return True


def why_no_structure() -> str | None:
    """Reason why the op graph of a step cannot be taken in this process, or ``None``."""
    if torch_compat.compiled_graphs():
        return "the program runs graphs of torch.compile, whose ops a dispatch mode would push back to eager"
    if torch_compat.modes_on_stack():
        return "the program has its own dispatch mode around the step"
    return None


def print_plan(options: CaptureOptions, seen: Process, source: str, first: int, plan: tuple[Pass, ...]) -> None:
    """One line on the terminal of the first rank."""
    stream = sys.__stderr__
    if options.quiet or seen.rank != 0 or stream is None or stream.closed or not stream.isatty():
        return
    names = [str(device["name"]) for device in seen.devices]
    where = f"{len(names)}x {names[0]}" if names else "CPU"
    parts = []
    for item in plan:
        steps = f"step {first}" if item.count == 1 else f"steps {first}-{first + item.count - 1}"
        parts.append(f"{item.name} on {steps}")
        first += item.count
    by = "JAX" if any(item.tool == "jax_profiler" for item in plan) else "PyTorch"
    version = seen.packages["jax" if by == "JAX" else "torch"]
    print(f"perfscope: {by} {version} on {where}, steps from {source}, {', '.join(parts)}", file=stream, flush=True)


def known_rank(torch: Any) -> tuple[int | None, int | None]:
    """Rank and world size; the framework's take precedence over the launcher's."""
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    process = compat.process() if "jax" in sys.modules else None
    if process is not None:
        return process
    rank_info = rank_from_environment(os.environ)
    return (None, None) if rank_info is None else (rank_info.rank, rank_info.world_size)


def _claim_directory(run: Path, rank: int | None) -> tuple[int, Path]:
    """Claim a new directory by atomic mkdir. A known rank that is taken (a restart) gets a suffix."""
    for attempt in range(MOST_RANKS):
        number = attempt if rank is None else rank
        suffix = f"-{attempt + 1}" if rank is not None and attempt else ""
        path = run / f"rank{number:05d}{suffix}"
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return number, path
    raise RuntimeError(f"no free rank directory after {MOST_RANKS} tries")


def _devices(torch: Any) -> Iterable[Mapping[str, str | int]]:
    """The device this process uses; empty for a process that has not used one."""
    if torch is None or not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    yield {
        "name": str(properties.name),
        "memory_bytes": int(properties.total_memory),
        "cores": int(properties.multi_processor_count),
        "capability": f"{properties.major}.{properties.minor}",
        "platform": f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}",
    }


# Reports of a session at the end of a launch of an A/B: counters of memory, and the origin of its code.
#
# A package that is installed in editable mode points to the checkout: both arms would run the same code, and the
# comparison would find, rightly and uselessly, that nothing changed.


STRAYS_FILE = "strays.txt"
"""In the directory of a launch: one module a line."""
LOADED_FILE = "loaded.txt"
"""Beside it: one file a line, relative to the top of the arm's worktree."""
MOST_STRAYS = 20


def finish_ab_launch(message: Message, seen: Process | None) -> Process | None:
    """``seen`` with the allocators' counters; modules from the checkout are written down, if there are any.

    If more than times was recorded, ``seen`` is unchanged.
    """
    if not message.options.times_only:
        return seen
    strays = [] if message.checkout is None else modules_from_checkout(Path(message.checkout))
    if strays:
        with (Path(message.directory) / STRAYS_FILE).open("a", encoding="utf-8") as stream:
            stream.write("".join(f"{name}\n" for name in strays[:MOST_STRAYS]))
    if message.tree is not None:
        root = Path(message.tree).resolve()
        with (Path(message.directory) / LOADED_FILE).open("a", encoding="utf-8") as stream:
            stream.write("".join(f"{path.relative_to(root)}\n" for _, path in _modules_below(root)))
    return None if seen is None else with_memory_after(seen)


def modules_from_checkout(checkout: Path) -> list[str]:
    """Modules that were loaded from below ``checkout``, by name; not ours, not of an environment in it."""
    return [
        name
        for name, path in _modules_below(checkout.resolve())
        if name.partition(".")[0] != "perfscope" and not {"site-packages", "dist-packages"} & set(path.parts)
    ]


def _modules_below(root: Path) -> list[tuple[str, Path]]:
    """(name, file) of the modules of this process that were loaded from below ``root``, the program itself too."""
    modules = []
    for name, module in sorted(sys.modules.copy().items()):
        # Python takes it from the program itself before exit.
        file = getattr(module, "__file__", sys.argv[0] if name == "__main__" and sys.argv else None)
        if isinstance(file, str) and (path := Path.cwd() / file).is_relative_to(root):
            modules.append((name, path))
    return modules


def read_strays(run: Path) -> tuple[str, ...]:
    """Modules from outside the arm that the processes of the launch in ``run`` reported, each once."""
    return tuple(_lines(run / STRAYS_FILE))


def read_loaded(run: Path) -> frozenset[str]:
    """Files of the arm's worktree that the processes of the launch in ``run`` imported."""
    return frozenset(_lines(run / LOADED_FILE))


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        return []
    return list(dict.fromkeys(path.read_text(encoding="utf-8", errors="replace").splitlines()))
