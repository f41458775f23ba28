"""Reads the parameters of an Orbax checkpoint with Orbax's public interface, which needs JAX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfscope.model.errors import DataError
from perfscope.plugins.parity.document import Arrays, Weight

DEFAULT_ITEM = "default"
"""Where Orbax's `CheckpointManager` stores a tree in the folder of a step."""
PARAMETERS = "params"
"""Keys of parameters in a training state or Flax model: if present, only that part is read."""


def read_orbax(folder: Path) -> tuple[list[Weight], Arrays]:
    """Floating-point leaves of the tree in ``folder``, 16-bit ones widened to float32, by the names of a pytree.

    ``DataError`` with one line if Orbax is not installed, or the folder is not an Orbax checkpoint.
    """
    try:
        from orbax.checkpoint import StandardCheckpointer
    except ImportError as error:
        raise DataError(f"{folder}: a folder is read as an Orbax checkpoint: pip install orbax-checkpoint") from error
    from perfscope.plugins.parity.jax_side import named_floats, to_numpy

    item = folder / DEFAULT_ITEM
    try:
        tree: Any = StandardCheckpointer().restore((item if item.is_dir() else folder).resolve())
    except Exception as error:  # any error of its storage drivers
        reason = str(error).partition("\n")[0][:200]
        raise DataError(f"{folder}: not read as an Orbax checkpoint: {type(error).__name__}: {reason}") from error
    while isinstance(tree, dict) and PARAMETERS in tree:
        tree = tree[PARAMETERS]
    leaves = named_floats(tree)
    weights = [Weight(name=name, shape=tuple(leaf.shape), dtype=str(leaf.dtype)) for name, leaf in leaves]
    return weights, {name: to_numpy(leaf) for name, leaf in leaves}
