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

    def add(self, category: str, name: str, thread: int, start: int, length: int, **args: Any) -> None:
        """An event; a kernel is of another process than what is on the host."""
        process = 0 if category == "kernel" else 1
        at = {"ph": "X", "cat": category, "name": name, "pid": process, "tid": thread, "ts": start, "dur": length}
        self.events.append(at | {"args": args})

    def launched(self, op: str, kernel: str, start: int, length: int, number: int) -> None:
        """An op at ``start`` and 30 us later its kernel; ``number``: of the launch, a new one each."""
        ids = {"correlation": number, "External id": number}
        self.add("cpu_op", op, 1, start, 60, **{"External id": number})
        self.add("cuda_runtime", "cudaLaunchKernel", 1, start + 10, 10, **ids)
        self.add("kernel", kernel, 7, start + 30, length, **ids, device=0, stream=7)

    def write(self, path: Path) -> Path:
        """``path``, with a trace of one device in it."""
        document = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]}
        path.write_bytes(gzip.compress(json.dumps(document | {"traceEvents": self.events}).encode()))
        return path
