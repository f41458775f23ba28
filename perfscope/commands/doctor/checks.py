"""A check of ``perfscope doctor``: something that was looked at, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "absent", "problem"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing looked at. ``absent``: not there, and fine so; ``problem``: something to do."""

    name: str
    status: Status
    text: str
    advice: str | None = None
