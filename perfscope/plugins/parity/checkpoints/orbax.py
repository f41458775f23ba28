"""Orbax checkpoints, read and written with Orbax's public interface, which needs JAX."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perfscope.model.errors import DataError
from perfscope.plugins.parity.checkpoints.stored import STORAGE, Checkpoint, Make
from perfscope.plugins.parity.document import Weight

DEFAULT_ITEM = "default"
"""Where Orbax's `CheckpointManager` stores a tree in the folder of a step."""
PARAMETERS = "params"
"""Keys of parameters in a training state or Flax model: if present, only that part is read."""


def open_orbax(folder: Path) -> Checkpoint:
    """Floating-point leaves of the tree in ``folder``, by the names of a pytree; all of them are in memory.

    ``DataError`` with one line if Orbax is not installed, or the folder is not an Orbax checkpoint.
    """
    checkpointer = _checkpointer(folder)
    from perfscope.plugins.parity.jax_side import named_floats

    item = folder / DEFAULT_ITEM
    try:
        tree: Any = checkpointer.restore((item if item.is_dir() else folder).resolve())
    except Exception as error:  # any error of its storage drivers
        reason = str(error).partition("\n")[0][:200]
        raise DataError(f"{folder}: not read as an Orbax checkpoint: {type(error).__name__}: {reason}") from error
    while isinstance(tree, dict) and PARAMETERS in tree:
        tree = tree[PARAMETERS]
    leaves = [(name, leaf) for name, leaf in named_floats(tree) if str(leaf.dtype) in STORAGE]
    weights = [Weight(name=name, shape=tuple(leaf.shape), dtype=str(leaf.dtype)) for name, leaf in leaves]
    arrays = {name: np.asarray(leaf).view(STORAGE[str(leaf.dtype)]) for name, leaf in leaves}
    return Checkpoint(weights=tuple(weights), arrays=arrays, torch=False)


def write_orbax(folder: Path, specs: Sequence[Weight], make: Make) -> None:
    """Write arrays as a tree of dicts, whose keys are the parts of the names; all of it is in memory.

    Orbax writes a folder next to ``folder`` and renames it. ``DataError`` if one name is a part of another.
    """
    checkpointer = _checkpointer(folder)
    tree: dict[str, Any] = {}
    for spec in specs:
        *path, last = spec.name.split("/")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise DataError(f"{folder}: {spec.name} and a part of this name are both weights")
        if last in node:
            raise DataError(f"{folder}: {spec.name} and a part of this name are both weights")
        node[last] = _leaf(make(spec.name), spec.dtype)
    folder.parent.mkdir(parents=True, exist_ok=True)
    checkpointer.save(folder.absolute(), tree)
    checkpointer.wait_until_finished()


def _leaf(array: np.ndarray, dtype: str) -> np.ndarray:
    import ml_dtypes  # comes with jax

    found = np.array(array)
    return found if str(found.dtype) == dtype else found.view(getattr(ml_dtypes, dtype))


def _checkpointer(folder: Path) -> Any:
    try:
        from orbax.checkpoint import StandardCheckpointer
    except ImportError as error:
        raise DataError(f"{folder}: a folder is an Orbax checkpoint: pip install orbax-checkpoint") from error
    return StandardCheckpointer()
