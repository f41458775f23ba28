"""What a session reads of the process around it: rank, devices, memory, and what stands in a capture's way."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfscope.profiler import jax_compat, jax_side
from perfscope.profiler.options import CaptureOptions
from perfscope.profiler.plan import Pass
from perfscope.profiler.ranks import MOST_RANKS, place_of

ALLOCATOR_COUNTERS = (
    "allocated_bytes.all.current",
    "allocated_bytes.all.peak",
    "reserved_bytes.all.current",
    "reserved_bytes.all.peak",
    "inactive_split_bytes.all.current",
    "num_alloc_retries",
    "num_ooms",
)
"""What is kept of ``torch.cuda.memory_stats()``."""

ATTACHED_FILE = ".framework-seen"
"""Made by the first process that imports torch or jax: without it the program had neither."""
FAILURES_FILE = "failures.txt"
"""One line for each error of our own inside the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is known of this process. ``path``: its own directory in the run's."""

    rank: int
    world_size: int | None
    path: Path
    devices: tuple[Mapping[str, str | int], ...]
    packages: Mapping[str, str]
    memory: Mapping[str, int]
    memory_after: Mapping[str, int]

    def manifest(self) -> dict[str, Any]:
        """These fields of the process' manifest."""
        return {
            "rank": self.rank,
            "directory": self.path.name,
            "world_size": self.world_size,
            "devices": self.devices,
            "packages": self.packages,
            "memory": self.memory,
            "memory_after": self.memory_after,
        }


def mark_attached(run: Path) -> None:
    """Leave a mark that torch or jax was imported under us."""
    (run / ATTACHED_FILE).touch()


def note_failure(run: Path, reason: str) -> None:
    """Append an error of ours to the run's list, one line."""
    with (run / FAILURES_FILE).open("a") as stream:
        stream.write(" ".join(reason.split())[:500] + "\n")


def look(run: Path) -> Seen:
    """Find out who this process is, and claim its directory."""
    torch: Any = sys.modules.get("torch")
    rank, world_size = _known_rank(torch)
    rank, path = _claim(run, rank)
    return Seen(
        rank=rank,
        world_size=world_size,
        path=path,
        devices=tuple(_devices(torch)) or tuple(jax_side.devices()),
        packages={**({} if torch is None else {"torch": str(torch.__version__)}), **jax_side.packages()},
        memory={},
        memory_after={},
    )


def look_again(seen: Seen, run: Path) -> Seen:
    """The same process later, when its rank and devices are known.

    A directory under a wrong rank is left for one under the right rank; what lies in it goes along.
    """
    torch: Any = sys.modules.get("torch")
    rank, world_size = _known_rank(torch)
    seen = replace(seen, world_size=world_size, devices=tuple(_devices(torch)) or seen.devices)
    if rank is None or rank == seen.rank:
        return seen
    rank, path = _claim(run, rank)
    for held in seen.path.iterdir():
        held.rename(path / held.name)
    seen.path.rmdir()
    return replace(seen, rank=rank, path=path)


def with_memory(seen: Seen, purposes: Mapping[str, int]) -> Seen:
    """The same with the bytes held now: what the trace of a window cannot see, as it was allocated before.

    ``purposes``: bytes of parameters, gradients ... (`captures/torch_tensors.py`).
    """
    return replace(seen, memory={**jax_side.memory(), **purposes, **allocator_counters()})


def with_memory_after(seen: Seen) -> Seen:
    """The same with the allocator's counters of now, behind the last pass."""
    return replace(seen, memory_after={**jax_side.memory(), **allocator_counters()})


def allocator_counters() -> dict[str, int]:
    """The counters of the CUDA allocator that are kept; none where CUDA is not in use. Peaks are since the start."""
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
    if profiler_records() or torch.cuda.is_current_stream_capturing():
        return False
    torch.cuda.synchronize()
    return True


def profiler_records() -> bool:
    """Whether a torch profiler records now."""
    profiler: Any = sys.modules.get("torch.autograd.profiler")
    return bool(profiler is not None and profiler._is_profiler_enabled)


def why_no_structure() -> str | None:
    """Why the op graph of a step cannot be taken in this process, or ``None``."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None and dynamo.counters["stats"].get("unique_graphs"):
        return "the program runs graphs of torch.compile, whose ops a dispatch mode would push back to eager"
    if modes_on_stack():
        return "the program has a dispatch mode of its own around the step"
    return None


def below_compiled_code() -> bool:
    """Whether a frame that torch.compile made is below us: a profiler that starts there can crash the program."""
    compiler: Any = sys.modules.get("torch._dynamo.convert_frame")
    if compiler is None:
        return False
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code in compiler.output_codes:
            return True
        frame = frame.f_back
    return False


def modes_on_stack() -> int:
    """Dispatch modes this thread is inside of."""
    torch: Any = sys.modules["torch"]
    return int(torch._C._len_torch_dispatch_stack())


def say_plan(options: CaptureOptions, seen: Seen, source: str, first: int, plan: tuple[Pass, ...]) -> None:
    """One line on the terminal of the first rank."""
    stream = sys.__stderr__
    if options.quiet or seen.rank != 0 or stream is None or not stream.isatty():
        return
    names = [str(device["name"]) for device in seen.devices]
    where = f"{len(names)}x {names[0]}" if names else "CPU"
    parts = []
    for one in plan:
        steps = f"step {first}" if one.count == 1 else f"steps {first}-{first + one.count - 1}"
        parts.append(f"{one.name} on {steps}")
        first += one.count
    by = "JAX" if any(one.tool == "jax_profiler" for one in plan) else "PyTorch"
    version = seen.packages["jax" if by == "JAX" else "torch"]
    print(f"perfscope: {by} {version} on {where}, steps from {source}, {', '.join(parts)}", file=stream, flush=True)


def _known_rank(torch: Any) -> tuple[int | None, int | None]:
    """Rank and world size: what the framework says wins over what the launcher told."""
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    process = jax_compat.process() if "jax" in sys.modules else None
    if process is not None:
        return process
    place = place_of(os.environ)
    return (None, None) if place is None else (place.rank, place.world_size)


def _claim(run: Path, rank: int | None) -> tuple[int, Path]:
    """A directory of our own, by atomic mkdir. A known rank that is taken (a restart) gets a suffix."""
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
    """The device this process uses; a process that has not touched one has none."""
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
