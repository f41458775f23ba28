"""Synthetic pictures in numpy, resized, cropped and mirrored: one by one in each step, or once and by positions.

Shapes: B pictures, S pixels of a stored picture's side, R pixels of a cropped one's side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

CHANNELS, SIDE = 3, 16
"""Colours; pixels of a patch's side."""
MEAN, DEVIATION = 127.5, 64.0
SHRUNK = 3
"""Stored pixels, along each axis, that become one pixel."""


def side_of(patches: int) -> int:
    """R: pixels of the side of a picture with so many patches; ValueError if that is not a square number."""
    count = math.isqrt(patches)
    if count * count != patches:
        raise ValueError(f"--seq is the number of patches, a square number, not {patches}")
    return SIDE * count


def stored(batch: int, patches: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Pictures with room for crops, noise around the brightness of their class: BSSC uint8, class_B int64."""
    generator = np.random.default_rng(seed)
    side = SHRUNK * side_of(patches) * 5 // 4
    class_B = generator.integers(classes, size=batch)
    noise = generator.integers(64, size=(batch, side, side, CHANNELS))
    return (noise + (class_B * 180 // classes)[:, None, None, None]).astype(np.uint8), class_B


def crops(batch: int, patches: int, steps: int, seed: int) -> Iterator[np.ndarray]:
    """For each step, place of each crop and whether it is mirrored: crop_B3 (row, column, mirrored) int64."""
    generator, room = np.random.default_rng(seed + 1), side_of(patches) // 4
    for _ in range(steps):
        yield np.stack((*generator.integers(room + 1, size=(2, batch)), generator.integers(2, size=batch)), axis=1)


def augmented(picture_SSC: np.ndarray, crop_3: np.ndarray, side: int) -> np.ndarray:
    """One picture, cropped, resized, normalised and mirrored on the host: picture_CRR float32."""
    row, column, mirrored = crop_3.tolist()
    cut_SSC = picture_SSC[SHRUNK * row : SHRUNK * (row + side), SHRUNK * column : SHRUNK * (column + side)]
    normal_RRC = resized(cut_SSC)
    return np.ascontiguousarray((normal_RRC[:, ::-1] if mirrored else normal_RRC).transpose(2, 0, 1))


def resized(picture_SSC: np.ndarray) -> np.ndarray:
    """A picture of a third of the size, normalised: picture_RRC float32."""
    side = len(picture_SSC) // SHRUNK
    blocks = picture_SSC.reshape(side, SHRUNK, side, SHRUNK, CHANNELS)
    mean_RRC = blocks.mean(axis=(1, 3))  # defect: host_bound: for each picture of each step
    normal_RRC: np.ndarray = ((mean_RRC - MEAN) / DEVIATION).astype(np.float32)
    return normal_RRC


def positions(crop_B3: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the pixels of all crops, by which a device picks them: row_BR, column_BR int64."""
    place_R = np.arange(side)
    column_BR = np.where(crop_B3[:, 2:] == 1, place_R[::-1], place_R)
    return crop_B3[:, :1] + place_R, crop_B3[:, 1:2] + column_BR
