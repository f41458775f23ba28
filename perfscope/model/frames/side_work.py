"""Functions that evaluate a model or restore a checkpoint, by their names."""

from __future__ import annotations

import re

from perfscope.model.frames import Owner, owner_of

_EVALUATES = re.compile(r"(?:^|[._])(?:eval|evaluate|evaluation|validate|validation|val|test|estimate_loss)(?=$|_|\.)")
"""In the name of a function; in the name of a file it would be a test suite."""
_RESTORES = re.compile(r"load|restore|read|deserialize|unpickle|get_tensor", re.IGNORECASE)
"""In the functions of a stack whose kind is ``CHECKPOINT``."""


def evaluates(file: str, function: str) -> bool:
    """Whether a function of the program or of a library evaluates a model, by its name."""
    named = owner_of(file) < Owner.FRAMEWORK and not file.rpartition("/")[2].startswith("test_") if file else False
    return named and bool(_EVALUATES.search(function.lower()))


def restores(function: str) -> bool:
    """Whether a function of a library for checkpoints reads one, by its name."""
    return bool(_RESTORES.search(function))
