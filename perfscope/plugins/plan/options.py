"""Words of the command line that several parts of `perfscope plan` read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from perfscope.model.errors import UsageError

Word = TypeVar("Word", bound=str)


def comma(option: str, text: str, known: Sequence[Word]) -> tuple[Word, ...]:
    """Words of a list; ``UsageError`` names one that is not known."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    wrong = next((part for part in parts if part not in known), None)
    if wrong is not None or not parts:
        raise UsageError(f"{option} {(wrong or text)[:40]}: must be one of {', '.join(known)}")
    return tuple(word for word in known if word in parts)


def share(option: str, text: str) -> float:
    """``10%`` or ``0.1``: 0.1. ``UsageError`` outside of 0 to 90%."""
    number = text.strip().removesuffix("%")
    try:
        value = float(number) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        raise UsageError(f"{option} {text[:20]}: give a share, e.g. 10%") from None
    if not 0 <= value <= 0.9:
        raise UsageError(f"{option} {text[:20]}: must be from 0% to 90%")
    return value


def fixed_axes(texts: Sequence[str]) -> dict[str, int]:
    """``tensor=8,fsdp=4``: axis -> size. ``UsageError`` for unknown axes."""
    from perfscope.plugins.plan.candidate import AXES  # `perfscope --help` loads the options of all commands

    result: dict[str, int] = {}
    for part in ",".join(texts).split(","):
        if not part.strip():
            continue
        axis, equals, size = part.strip().partition("=")
        if axis not in AXES or not equals or not size.isdigit() or int(size) < 1:
            raise UsageError(
                f"--mesh {part.strip()[:40]}: write an axis and its size, tensor=8; axes: {', '.join(AXES)}"
            )
        result[axis] = int(size)
    return result
