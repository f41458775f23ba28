"""Small traces of PyTorch's profiler for the browser's tests."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any


class Kineto:
    """Collects events (us) and writes them."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def add(self, category: str, name: str, thread: int, start: float, length: float, **args: Any) -> None:
        """An event; a kernel is of another process than what is on the host."""
        process = 0 if category == "kernel" else 1
        at = {"ph": "X", "cat": category, "name": name, "pid": process, "tid": thread, "ts": start, "dur": length}
        self.events.append(at | {"args": args})

    def launched(
        self, op: str, kernel: str, start: float, length: float, number: int, *, delay: float = 30, host: float = 60
    ) -> None:
        """An op of ``host`` us at ``start``, its kernel ``delay`` later; ``number``: of the launch, a new one each."""
        ids = {"correlation": number, "External id": number}
        self.add("cpu_op", op, 1, start, host, **{"External id": number})
        self.add("cuda_runtime", "cudaLaunchKernel", 1, start + host / 6, host / 6, **ids)
        self.add("kernel", kernel, 7, start + delay, length, **ids, device=0, stream=7)

    def write(self, path: Path, *, rank: int | None = None) -> Path:
        """``path``, with a trace of one device in it; ``rank``: of two."""
        document: dict[str, Any] = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": rank or 0, "name": "NVIDIA H100 80GB HBM3"}],
        }
        if rank is not None:
            document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
        content = json.dumps(document | {"traceEvents": self.events}).encode()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
        return path


def ops(path: Path, *names: str, length: float = 5) -> Path:
    """``path``, with a trace of host ops one after the other."""
    made = Kineto()
    for number, name in enumerate(names):
        made.add("cpu_op", name, 1, (length + 5) * number, length)
    return made.write(path)
