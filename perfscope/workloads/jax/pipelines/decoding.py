"""The JAX twin of ``decoding``: training on clips that Grain decodes.

    python -m perfscope.workloads.jax.pipelines.decoding --defect whole
    python -m perfscope.workloads.jax.pipelines.decoding --workers 2

Shapes: B clips a batch, T frames, H and W pixels, C channels.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from perfscope.workloads.jax.training import report
from perfscope.workloads.pipelines.media import CLIP, video_clip, write_files
from perfscope.workloads.pipelines.packages import needed

CLIPS = 12
"""Clips of a file."""
CLASSES, PATCH, RATE = 10, 16, 0.001


class Clips:
    """Clip ``index``: a file and a place in it, as Grain reads a source."""

    def __init__(self, paths: list[Path], *, whole: bool) -> None:
        self.paths, self.whole = paths, whole

    def __len__(self) -> int:
        """Number of clips."""
        return len(self.paths) * CLIPS

    def __getitem__(self, index: int) -> np.ndarray:
        """image_THWC."""
        return video_clip(str(self.paths[index % len(self.paths)]), index // len(self.paths), whole=self.whole)


def loss_of(weights: dict[str, jax.Array], clips_BTHWC: jax.Array) -> jax.Array:
    """Cross-entropy of a classifier of patches, in nats."""
    batch, _, side, _, channels = clips_BTHWC.shape
    patches = clips_BTHWC.reshape(batch * CLIP, side // PATCH, PATCH, side // PATCH, PATCH, channels)
    patches = patches.transpose(0, 1, 3, 2, 4, 5).reshape(batch, -1, PATCH * PATCH * channels) / 255.0
    logits = jax.nn.gelu(patches @ weights["patch"]).mean(1) @ weights["head"]
    target_B = jnp.arange(batch) % CLASSES
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), target_B[:, None], axis=1).mean()


@jax.jit
def update(weights: dict[str, jax.Array], clips_BTHWC: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    """One step of gradient descent: the new weights and the loss."""
    loss, slopes = jax.value_and_grad(loss_of)(weights, clips_BTHWC)
    return jax.tree.map(lambda weight, slope: weight - RATE * slope, weights, slopes), loss


def train(options: argparse.Namespace) -> list[float]:
    """Trains ``options.steps`` steps, prints the loss of each and returns them."""
    grain: Any = needed("grain.python")
    needed("av")
    if options.workers:
        needed("absl.flags").FLAGS.mark_as_parsed()  # its worker processes read flags
    generator = np.random.default_rng(options.seed)
    weights = {
        "patch": generator.standard_normal((PATCH * PATCH * 3, options.width), np.float32) / PATCH,
        "head": generator.standard_normal((options.width, CLASSES), np.float32),
    }
    losses = []
    with tempfile.TemporaryDirectory(prefix="clips-") as folder:
        paths = write_files(Path(folder), "video", options.files, CLIPS, options.side, options.seed)
        source = Clips(paths, whole=options.defect == "whole")
        sampler = grain.IndexSampler(len(source), shuffle=False, num_epochs=None, shard_options=grain.NoSharding())
        loader = grain.DataLoader(
            data_source=source, sampler=sampler, operations=[grain.Batch(options.batch)], worker_count=options.workers
        )
        for clips_BTHWC in itertools.islice(loader, options.steps):
            weights, loss = update(weights, clips_BTHWC)
            losses.append(loss)
    return report(losses)


def parsed(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=0, help="worker processes; 0: the training process decodes")
    parser.add_argument("--defect", choices=("whole",), help="decode a whole file for each clip")
    for name, value in (("steps", 40), ("batch", 4), ("files", 8), ("side", 96), ("width", 256), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args(argv)


if __name__ == "__main__":
    train(parsed())
