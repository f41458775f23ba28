"""The mesh that `perfscope plan` gives to a program: by a template of its flags, or in its environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from perfscope.model.errors import UsageError
from perfscope.plugins.plan.candidate import AXES, Mesh

VARIABLE = "PERFSCOPE_MESH"
"""``data=2,fsdp=4``: read by `mesh`, or by the program itself."""


def mesh(**sizes: int) -> dict[str, int]:
    """Sizes of the axes of a program's mesh: those given, unless `perfscope plan` chooses others.

    ``sizes``: axis -> devices as the program would have them, ``mesh(data=8, tensor=1)``. An axis that a plan names and
    the program does not is a ``ValueError``: the program cannot divide its work along it.
    """
    parts = (part.partition("=") for part in _parts(os.environ.get(VARIABLE, "")))
    chosen = {axis: int(size) for axis, _, size in parts}
    unknown = next((axis for axis in chosen if axis not in sizes and chosen[axis] > 1), None)
    if unknown is not None:
        raise ValueError(f"perfscope.mesh: the plan has an axis {unknown}, the program has {', '.join(sizes)}")
    return {axis: chosen.get(axis, size) if chosen else size for axis, size in sizes.items()}


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def environment_of(chosen: Mesh, axes: Sequence[str]) -> dict[str, str]:
    """The variable for a program that reads its mesh there."""
    return {VARIABLE: ",".join(f"{axis}={chosen.sizes[axis]}" for axis in axes)}


def axes_of_template(template: str) -> tuple[str, ...]:
    """Axes of ``--data {data} --mesh {fsdp}x{tensor}``. ``UsageError`` for an unknown axis, or without any."""
    named = re.findall(r"\{([^{}]*)\}", template)
    wrong = next((name for name in named if name not in AXES), None)
    if wrong is not None or not named:
        raise UsageError(
            f"--mesh-flag {template[:60]}: write axes in braces, --mesh {{data}}x{{tensor}}; axes: {', '.join(AXES)}"
        )
    return tuple(axis for axis in AXES if axis in named)


def words_of(template: str, chosen: Mesh) -> tuple[str, ...]:
    """Words of the program's command line for a mesh."""
    sizes: Mapping[str, int] = chosen.sizes
    return tuple(re.sub(r"\{(\w+)\}", lambda match: str(sizes[match[1]]), word) for word in template.split())
