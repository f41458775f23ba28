"""Training on clips of compressed videos or sounds, decoded while the program trains.

    python -m perfscope.workloads.pipelines.decoding --defect whole
    python -m perfscope.workloads.pipelines.decoding --media audio --workers 2
    python -m perfscope.workloads.pipelines.decoding --loader webdataset --workers 2

``--defect whole`` decodes a whole file for each clip; without it only the clip. With ``--workers 0`` the training
process decodes. The files are made before the first step.

Shapes: B clips a batch, T frames, H and W pixels, C channels, N numbers of a sound.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from perfscope.workloads.pipelines.media import DECODERS, clips_of, write_files, write_shards
from perfscope.workloads.pipelines.packages import needed
from perfscope.workloads.training import report

CLIPS = 12
"""Clips of a file."""
CLASSES = 10
SHARDS = 2


class Clips(Dataset):
    """Clip ``index``: a file and a place in it."""

    def __init__(self, paths: list[Path], media: str, *, whole: bool) -> None:
        self.paths, self.decode, self.whole = paths, DECODERS[media], whole

    def __len__(self) -> int:
        """Number of clips."""
        return len(self.paths) * CLIPS

    def __getitem__(self, index: int) -> np.ndarray:
        """image_THWC or sound_N."""
        return self.decode(str(self.paths[index % len(self.paths)]), index // len(self.paths), whole=self.whole)


class FromTar:
    """All clips of each sample of a shard, which WebDataset reads in order."""

    def __init__(self, media: str, *, whole: bool) -> None:
        self.suffix, self.decode, self.whole = ("mp4" if media == "video" else "flac"), DECODERS[media], whole

    def __call__(self, samples: Iterator[dict[str, Any]]) -> Iterator[np.ndarray]:
        """One clip after the other."""
        for sample in samples:
            yield from clips_of(sample[self.suffix], self.decode, CLIPS, whole=self.whole)


class Network(nn.Module):
    """Classifier of clips: image_BTHWC or sound_BN -> logits."""

    def __init__(self, media: str, width: int) -> None:
        super().__init__()
        self.media = media
        first = nn.Conv2d(3, width, 5, stride=4) if media == "video" else nn.Conv1d(1, width, 64, stride=16)
        second = nn.Conv2d(width, width, 3) if media == "video" else nn.Conv1d(width, width, 9)
        self.layers = nn.Sequential(first, nn.GELU(), second, nn.GELU())
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """logits, one row per clip."""
        if self.media == "video":
            frames = x.flatten(0, 1).permute(0, 3, 1, 2).float() / 255
            return self.head(self.layers(frames).mean((2, 3)).view(len(x), -1, self.head.in_features).mean(1))
        return self.head(self.layers(x[:, None]).mean(2))


def loader_of(options: argparse.Namespace, folder: Path) -> Any:
    """The batches, as tensors."""
    paths = write_files(folder, options.media, options.files, CLIPS, options.side, options.seed)
    whole = options.defect == "whole"
    keep = options.workers > 0
    if options.loader == "webdataset":
        webdataset = needed("webdataset")
        shards = write_shards(folder, paths, SHARDS)
        samples = webdataset.WebDataset(shards, shardshuffle=False).compose(FromTar(options.media, whole=whole))
        return webdataset.WebLoader(samples, batch_size=options.batch, num_workers=options.workers)
    data = Clips(paths, options.media, whole=whole)
    return DataLoader(data, batch_size=options.batch, num_workers=options.workers, persistent_workers=keep)


def train(options: argparse.Namespace) -> list[float]:
    """Trains ``options.steps`` steps, prints the loss of each and returns them."""
    needed("av")
    torch.manual_seed(options.seed)
    model = Network(options.media, options.width).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    losses: list[torch.Tensor] = []
    with tempfile.TemporaryDirectory(prefix="clips-") as folder:
        loader = loader_of(options, Path(folder))
        while len(losses) < options.steps:
            for clips in loader:
                if len(losses) == options.steps:
                    break
                x = clips.to(options.device, non_blocking=True)
                target_B = torch.arange(len(x), device=x.device) % CLASSES
                loss = F.cross_entropy(model(x), target_B)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.detach())
    return report(losses)


def parsed(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--media", choices=DECODERS, default="video")
    parser.add_argument("--loader", choices=("torch", "webdataset"), default="torch")
    parser.add_argument("--workers", type=int, default=0, help="worker processes; 0: the training process decodes")
    parser.add_argument("--defect", choices=("whole",), help="decode a whole file for each clip")
    for name, value in (("steps", 40), ("batch", 4), ("files", 8), ("side", 96), ("width", 32), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--device", default="cpu")
    return parser.parse_args(argv)


if __name__ == "__main__":
    train(parsed())
