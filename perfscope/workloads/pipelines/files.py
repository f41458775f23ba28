"""Training on one file per sample, which the loop reads from the disk, and a twin that has read them before.

    python -m perfscope.workloads.pipelines.files
    python -m perfscope.workloads.pipelines.files --workers 2
    python -m perfscope.workloads.pipelines.files --twin

The files are written before the first step and dropped from the page cache (Linux), as in a first epoch over data that
does not fit into memory.

Shapes: B samples a batch, N numbers of a sample, of which D are used.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from perfscope.workloads.training import report

USED, CLASSES = 512, 10
"""Numbers of a sample that the model uses, and classes."""


class Files(Dataset):
    """Sample ``index``: the first numbers of a file."""

    def __init__(self, paths: list[Path], *, ahead: bool) -> None:
        self.paths = paths
        self.kept = [self.read(index) for index in range(len(paths))] if ahead else []

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        """sample_D."""
        return self.kept[index] if self.kept else self.read(index)

    def read(self, index: int) -> torch.Tensor:
        """The whole file, of which little is used."""
        sample_N = np.fromfile(self.paths[index], np.float32)  # defect: storage_bound
        return torch.from_numpy(sample_N[:USED].copy())


def write_files(folder: Path, files: int, size: int, seed: int) -> list[Path]:
    """Write files of ``size`` bytes to the disk, and drop them from the page cache."""
    generator = np.random.default_rng(seed)
    paths = [folder / f"{number}.bin" for number in range(files)]
    for path in paths:
        with path.open("wb") as file:
            file.write(generator.standard_normal(size // 4, np.float32).tobytes())
            file.flush()
            os.fsync(file.fileno())
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return paths


def train(options: argparse.Namespace) -> list[float]:
    """Trains ``options.steps`` steps, prints the loss of each and returns them."""
    torch.manual_seed(options.seed)
    model = nn.Sequential(nn.Linear(USED, options.width), nn.GELU(), nn.Linear(options.width, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    losses = []
    with tempfile.TemporaryDirectory(prefix="files-", dir=options.folder) as folder:
        paths = write_files(Path(folder), options.steps * options.batch, options.bytes, options.seed)
        data = Files(paths, ahead=options.twin)
        for x_BD in DataLoader(data, batch_size=options.batch, num_workers=options.workers):
            target_B = torch.arange(len(x_BD)) % CLASSES
            loss = F.cross_entropy(model(x_BD), target_B)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
    return report(losses)


def parsed(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--twin", action="store_true", help="read all files before the first step")
    parser.add_argument("--folder", type=Path, help="where the files are written; default: the temporary folder")
    parser.add_argument("--workers", type=int, default=0, help="worker processes that read")
    for name, value in (("steps", 60), ("batch", 4), ("bytes", 1 << 20), ("width", 512), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args(argv)


if __name__ == "__main__":
    train(parsed())
