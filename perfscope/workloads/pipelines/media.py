"""Synthetic videos and sounds in compressed files, and clips decoded from them.

Shapes: T frames of a clip, H and W pixels, C channels; N numbers of a sound.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from perfscope.workloads.pipelines.packages import needed

CLIP = 8
"""Frames of a clip, and between two key frames: a clip begins with a key frame."""
RATE = 16_000
"""Numbers per second of a sound."""
SOUND = RATE // 4
"""Numbers of a clip of a sound."""


def write_video(path: Path, frames: int, side: int, seed: int) -> None:
    """Write a video of moving bars, MPEG-4 with a key frame every ``CLIP`` frames."""
    av = needed("av")
    with av.open(str(path), "w") as file:
        stream = file.add_stream("mpeg4", rate=25)
        stream.width = stream.height = side
        stream.pix_fmt = "yuv420p"
        stream.codec_context.gop_size = CLIP
        stream.codec_context.max_b_frames = 0
        for number in range(frames):
            bars_HW = (np.arange(side)[:, None] * 3 + np.arange(side) + (number + seed) * 5) % 256
            image_HWC = np.repeat(bars_HW[:, :, None], 3, axis=2).astype(np.uint8)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(image_HWC, format="rgb24")))
        file.mux(stream.encode())


def write_sound(path: Path, clips: int, seed: int) -> None:
    """Write a sound of two tones, FLAC."""
    av = needed("av")
    time_N = np.arange(clips * SOUND) / RATE
    tone_N = np.sin(time_N * (200 + seed % 97)) + np.sin(time_N * 3000)
    with av.open(str(path), "w") as file:
        stream = file.add_stream("flac", rate=RATE)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray((tone_N * 8000).astype(np.int16)[None], format="s16", layout="mono")
        frame.sample_rate = RATE
        file.mux(stream.encode(frame))
        file.mux(stream.encode())


def video_clip(source: Any, clip: int, *, whole: bool) -> np.ndarray:
    """Clip number ``clip`` of a video as image_THWC, uint8. ``whole``: decode the file from beginning to end."""
    with needed("av").open(source) as file:
        stream = file.streams.video[0]
        if whole:
            frames = [frame.to_ndarray(format="rgb24") for frame in file.decode(stream)]  # defect: input_stall
            return np.stack(frames[clip * CLIP : (clip + 1) * CLIP])
        frame_time = int(1 / (stream.average_rate * stream.time_base))
        file.seek(clip * CLIP * frame_time, stream=stream)
        decoded = file.decode(stream)
        return np.stack([next(decoded).to_ndarray(format="rgb24") for _ in range(CLIP)])


def sound_clip(source: Any, clip: int, *, whole: bool) -> np.ndarray:
    """Clip number ``clip`` of a sound, float32. ``whole``: decode the file to its end."""
    parts, have = [], 0
    with needed("av").open(source) as file:
        for frame in file.decode(audio=0):  # defect: input_stall: a clip needs only the beginning of the file
            parts.append(frame.to_ndarray()[0])
            have += len(parts[-1])
            if not whole and have >= (clip + 1) * SOUND:
                break
    return np.concatenate(parts)[clip * SOUND : (clip + 1) * SOUND].astype(np.float32) / 8000


Decode = Callable[..., np.ndarray]
DECODERS: dict[str, Decode] = {"video": video_clip, "audio": sound_clip}


def write_files(folder: Path, media: str, files: int, clips: int, side: int, seed: int) -> list[Path]:
    """Write the files of a data set, and return their paths."""
    paths = [folder / f"{number}.{'mp4' if media == 'video' else 'flac'}" for number in range(files)]
    for number, path in enumerate(paths):
        if media == "video":
            write_video(path, clips * CLIP, side, seed + number)
        else:
            write_sound(path, clips, seed + number)
    return paths


def write_shards(folder: Path, paths: list[Path], shards: int) -> list[str]:
    """Pack the files into tar files, as WebDataset reads them, and return their paths."""
    names = [folder / f"shard-{number}.tar" for number in range(shards)]
    for number, name in enumerate(names):
        with tarfile.open(name, "w") as tar:
            for path in paths[number::shards]:
                tar.add(path, arcname=path.name)
    return [str(name) for name in names]


def clips_of(raw: bytes, decode: Decode, clips: int, *, whole: bool) -> Iterator[np.ndarray]:
    """All clips of a file, decoded one by one."""
    for clip in range(clips):
        yield decode(io.BytesIO(raw), clip, whole=whole)
