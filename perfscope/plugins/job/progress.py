"""Progress that a program reports itself: tokens and loss, for the ledger of a job."""

from __future__ import annotations

from typing import NamedTuple


class Told(NamedTuple):
    """Reports so far."""

    tokens: int = 0
    """Sum over all calls."""
    loss: float | None = None
    """Loss of the last call that had one."""


_told = Told()


def progress(*, tokens: int = 0, loss: float | None = None) -> None:
    """Report how many tokens a step trained, and its loss, to the ledger of ``perfscope run --ledger``.

    ``tokens``: of this step and process. ``loss``: a number that the program has on the host; a tensor on a device is
    not read here, because the program would wait for it. Without ``--ledger`` the call does nothing of note.

    Raises:
        TypeError: if ``loss`` is not a number.
    """
    global _told
    if loss is not None and not isinstance(loss, (int, float)):
        raise TypeError(f"loss is a {type(loss).__name__}: pass a number, such as loss.item() where it is read anyway")
    _told = Told(tokens=_told.tokens + int(tokens), loss=_told.loss if loss is None else float(loss))


def told() -> Told:
    """Reports of the program so far."""
    return _told
