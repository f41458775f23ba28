"""The format of a checkpoint by its path; files are written next to their place and renamed when they are complete."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from perfscope.model.errors import DataError, UsageError
from perfscope.model.files import write_atomically
from perfscope.plugins.parity.checkpoints.stored import Checkpoint, Make, stored_bytes
from perfscope.plugins.parity.document import Weight
from perfscope.plugins.parity.heads import is_fused, of_folder, with_heads

SAFETENSORS = ".safetensors"
INDEX = ".safetensors.index.json"
TORCH = (".pt", ".pth", ".bin", ".ckpt")


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a checkpoint. ``DataError`` with one line if it is missing, damaged, or of no known format."""
    from perfscope.plugins.parity.checkpoints.orbax import open_orbax
    from perfscope.plugins.parity.checkpoints.safetensors import holds_safetensors, open_safetensors

    if path.is_dir() and not holds_safetensors(path):
        return open_orbax(path)
    if path.suffix in TORCH:
        from perfscope.plugins.parity.checkpoints.torch_file import open_torch

        return open_torch(path)
    opened = open_safetensors(path)
    heads = of_folder(path if path.is_dir() else path.parent)
    if not heads or not opened.torch or not any(map(is_fused, opened.weights)):
        return opened
    return replace(opened, weights=tuple(with_heads(opened.weights, heads, "a")))


def check_target(target: Path) -> None:
    """``UsageError`` unless ``target`` can be written: a new path whose name has a known suffix, or none."""
    if target.exists():
        raise UsageError(f"{target}: exists; checkpoints are not replaced")
    known = (SAFETENSORS, INDEX, *TORCH)
    if target.suffix and not target.name.endswith(known):
        raise UsageError(f"{target}: give a name that ends in {', '.join(known)}, or a folder for Orbax")


def write_checkpoint(target: Path, specs: Sequence[Weight], make: Make, *, torch: bool, shard_bytes: int) -> list[Path]:
    """Write arrays into ``target``, whole or not at all; return the files. ``torch``: names are of a state dict.

    ``make`` is called once for each array, in order. ``shard_bytes``: most bytes of a file of an index.
    """
    from perfscope.plugins.parity.checkpoints.safetensors import write_safetensors

    try:
        target.absolute().parent.mkdir(parents=True, exist_ok=True)
        if target.name.endswith(INDEX):
            return _write_shards(target, specs, make, torch=torch, shard_bytes=shard_bytes)
        if target.suffix in TORCH:
            from perfscope.plugins.parity.checkpoints.torch_file import write_torch

            _whole(target, lambda draft: write_torch(draft, specs, make))
        elif target.suffix == SAFETENSORS:
            _whole(target, lambda draft: write_safetensors(draft, specs, make, torch=torch))
        else:
            from perfscope.plugins.parity.checkpoints.orbax import write_orbax

            write_orbax(target, specs, make)
    except OSError as error:
        raise DataError(f"{target}: {(error.strerror or 'cannot be written').lower()}") from error
    return [target]


def _draft(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}.part")


def _whole(target: Path, write: Callable[[Path], None]) -> None:
    draft = _draft(target)
    try:
        write(draft)
        _synced(draft)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def _synced(file: Path) -> None:
    with file.open("rb+") as stream:
        os.fsync(stream.fileno())


def _write_shards(target: Path, specs: Sequence[Weight], make: Make, *, torch: bool, shard_bytes: int) -> list[Path]:
    """Write the files of an index, then the index, without which the files are not read."""
    import msgspec

    from perfscope.plugins.parity.checkpoints.safetensors import shards, write_safetensors

    groups = shards(specs, shard_bytes)
    stem = target.name.removesuffix(INDEX)
    files = [
        target.with_name(f"{stem}-{number:05}-of-{len(groups):05}{SAFETENSORS}") for number in range(1, len(groups) + 1)
    ]
    for file in files:
        check_target(file)
    drafts = [_draft(file) for file in files]
    try:
        for group, draft in zip(groups, drafts, strict=True):
            write_safetensors(draft, group, make, torch=torch)
            _synced(draft)
        for draft, file in zip(drafts, files, strict=True):
            draft.replace(file)
    finally:
        for draft in drafts:
            draft.unlink(missing_ok=True)
    index = {
        "metadata": {"total_size": sum(stored_bytes(spec) for spec in specs)},
        "weight_map": {spec.name: file.name for group, file in zip(groups, files, strict=True) for spec in group},
    }
    write_atomically(target, msgspec.json.format(msgspec.json.encode(index), indent=2))
    return [target, *files]
