"""Work of known amount for ``perfscope doctor --self-test``; the program writes down its amounts.

    python -m perfscope.workloads.known TRUTH.json
    python -m perfscope.workloads.known TRUTH.json --twin

Every step multiplies matrices, reads results on the host, sleeps, holds blocks of memory and copies from the host,
each a fixed number of times. The twin does the same without the reads, the sleep and the pageable copies.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import perfscope

STEPS = 12
READS = 3
MATMULS = 2
"""Before each read, which waits for them."""
BLOCKS = 3
COPIES = 2
SLEEP_S = 0.010
SPIN_S = 0.001
"""Work of the host on each value that was read; the device is idle meanwhile."""
BLOCK_BYTES = 4 << 20
COPY_BYTES = {"cpu": 8 << 20, "cuda": 32 << 20}
DIM = {"cpu": 256, "cuda": 4096}
"""On a GPU a read has to wait for milliseconds of work, and a copy takes as long."""
SLEEP = "self_test.sleep"


def spin() -> None:
    """Keep the host busy."""
    end = time.perf_counter() + SPIN_S
    while time.perf_counter() < end:
        pass


def work(device: str, twin: bool) -> list[dict[str, int]]:
    """Run all steps; when each step, and the sleep in it, began and ended, in ns since the epoch."""
    matrix = torch.ones(DIM[device], DIM[device], device=device)
    source = torch.ones(COPY_BYTES[device], dtype=torch.uint8, pin_memory=twin and device == "cuda")
    target = torch.empty(COPY_BYTES[device], dtype=torch.uint8, device=device)
    moments = []
    for _ in range(STEPS):
        begin = time.time_ns()
        for _ in range(READS):
            for _ in range(MATMULS):
                product = matrix @ matrix
            if not twin:
                product.sum().item()  # planted: host_sync
                spin()
        sleep_begin = time.time_ns()
        if not twin:
            with perfscope.region(SLEEP):
                time.sleep(SLEEP_S)
        sleep_end = time.time_ns()
        blocks = [torch.empty(BLOCK_BYTES, dtype=torch.uint8, device=device) for _ in range(BLOCKS)]
        del blocks
        for _ in range(COPIES):
            target.copy_(source, non_blocking=twin)  # planted: pageable_copy
        moments.append(
            {"begin_ns": begin, "end_ns": time.time_ns(), "sleep_begin_ns": sleep_begin, "sleep_end_ns": sleep_end}
        )
        perfscope.step()
    return moments


def main(argv: Sequence[str] | None = None) -> None:
    """Do the work and write its amounts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("truth", type=Path, help="file for what was done")
    parser.add_argument("--twin", action="store_true", help="without the planted defects")
    parser.add_argument("--device", choices=DIM, default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(argv)
    truth: dict[str, Any] = {"framework": "torch", "device": options.device, "file": __file__, "twin": options.twin}
    truth["moments"] = work(options.device, options.twin)
    truth |= {
        "matmuls": READS * MATMULS,
        "reads": 0 if options.twin else READS,
        "sleep_ns": 0 if options.twin else round(SLEEP_S * 1e9),
        "blocks": BLOCKS,
        "block_bytes": BLOCK_BYTES,
        "copies": COPIES,
        "copy_bytes": COPY_BYTES[options.device],
    }
    options.truth.write_text(json.dumps(truth))


if __name__ == "__main__":
    main()
