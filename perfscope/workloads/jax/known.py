"""Work of known amount for ``perfscope doctor --self-test``, in JAX: the counterpart of ``perfscope.workloads.known``.

python -m perfscope.workloads.jax.known TRUTH.json
python -m perfscope.workloads.jax.known TRUTH.json --twin
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import perfscope

STEPS = 12
MATMULS = 4
READS = 3
SLEEP_S = 0.010
DIM = {"cpu": 256, "gpu": 4096}
SLEEP = "self_test.sleep"


@jax.jit
def known_product(matrix: jax.Array) -> jax.Array:
    """The program whose runs are counted and whose memory is known: one square matrix in, one out."""
    return matrix @ matrix


@jax.jit
def known_reading(matrix: jax.Array) -> list[jax.Array]:
    """New scalars of every step: an array that was read once keeps its value on the host."""
    return [matrix[at, at] for at in range(READS)]


def work(dim: int, twin: bool) -> list[dict[str, int]]:
    """Run all steps; when each step, and the sleep in it, began and ended, in ns since the epoch."""
    matrix = jnp.full((dim, dim), 1.0 / dim)
    moments = []
    for _ in range(STEPS):
        begin = time.time_ns()
        product = matrix
        for _ in range(MATMULS):
            product = known_product(product)
        values = known_reading(product)
        if not twin:
            for value in values:
                float(value)  # planted: host_sync
        sleep_begin = time.time_ns()
        if not twin:
            with perfscope.region(SLEEP):
                time.sleep(SLEEP_S)
        sleep_end = time.time_ns()
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
    options = parser.parse_args(argv)
    device = jax.default_backend()
    dim = DIM.get(device, DIM["gpu"])
    truth: dict[str, Any] = {"framework": "jax", "device": device, "file": __file__, "twin": options.twin}
    truth["moments"] = work(dim, options.twin)
    truth |= {
        "matmuls": MATMULS,
        "module": "jit_known_product",
        "reads": 0 if options.twin else READS,
        "read_bytes": 4,
        "sleep_ns": 0 if options.twin else round(SLEEP_S * 1e9),
        "program_bytes": 2 * dim * dim * 4,
    }
    options.truth.write_text(json.dumps(truth))


if __name__ == "__main__":
    main()
