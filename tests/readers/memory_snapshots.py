"""Snapshots as torch writes them, of an allocator small enough to know the truth of."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

FRAMES = [
    [
        {"name": name, "filename": "/home/someone/model.py", "line": 10 + line},
        {"name": "main", "filename": "/home/someone/train.py", "line": 3},
    ]
    for line, name in enumerate(("forward", "backward", "step"))
]


@dataclass
class Allocator:
    """Keeps a block in a separate segment until the segment is returned; records the truth after each entry."""

    seed: int
    entries: list[dict[str, Any]] = field(default_factory=list)
    live: dict[int, int] = field(default_factory=dict)
    """Address to bytes asked for."""
    segments: dict[int, int] = field(default_factory=dict)
    truth: list[tuple[dict[int, int], int]] = field(default_factory=list)
    """Blocks held and bytes reserved after each entry."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._awaiting: dict[int, int] = {}

    def note(self, action: str, address: int, size: int, **more: Any) -> None:
        entry = {"action": action, "addr": address, "size": size, "stream": 7, **more}
        entry["time_us"] = 1_700_000_000_000_000 + 5 * len(self.entries)
        if self._random.random() < 0.9:
            entry["frames"] = self._random.choice(FRAMES)
        self.entries.append(entry)
        self.truth.append((dict(self.live), sum(self.segments.values())))

    def run(self, steps: int) -> Allocator:
        for _ in range(steps):
            move = self._random.choice(("take", "take", "free", "free", "release", "finish"))
            unused = [address for address in self.segments if address not in self.live]
            if move == "take" and unused and self._random.random() < 0.7:
                self._take(self._random.choice(unused))
            elif move == "take":
                address = (len(self.entries) + 1) << 21
                self.segments[address] = 1 << 20
                self.note("segment_alloc", address, 1 << 20)
                self._take(address)
            elif move == "free" and (candidates := [a for a in self.live if a not in self._awaiting]):
                address = self._random.choice(candidates)
                self._awaiting[address] = self.live[address]
                self.note("free_requested", address, self.live[address])
            elif move == "finish" and self._awaiting:
                address, size = self._awaiting.popitem()
                del self.live[address]
                self.note("free_completed", address, size)
            elif move == "release" and unused:
                size = self.segments.pop(unused[0])
                self.note("segment_free", unused[0], size)
        return self

    def _take(self, address: int) -> None:
        self.live[address] = self._random.randint(1, self.segments[address])
        self.note("alloc", address, self.live[address])

    def state(self, device: int = 0) -> list[dict[str, Any]]:
        found = []
        for address, size in self.segments.items():
            asked = self.live.get(address)
            used = 0 if asked is None else -(-asked // 512) * 512
            state = "active_awaiting_free" if address in self._awaiting else "active_allocated"
            blocks = [] if asked is None else [
                {"address": address, "size": used, "requested_size": asked, "state": state, "frames": FRAMES[0]}
            ]  # fmt: skip
            if used < size:
                blocks.append(
                    {
                        "address": address + used,
                        "size": size - used,
                        "requested_size": 0,
                        "state": "inactive",
                        "frames": [],
                    }
                )
            found.append({
                "device": device, "address": address, "total_size": size, "stream": 7,
                "allocated_size": 0 if address in self._awaiting else used, "active_size": used,
                "requested_size": asked or 0, "segment_type": "small", "segment_pool_id": (0, 0),
                "is_expandable": False, "frames": [], "blocks": blocks,
            })  # fmt: skip
        return found

    def snapshot(self, *, keep: int | None = None) -> dict[str, Any]:
        """With the last ``keep`` entries, as a ring buffer has them."""
        kept = self.entries if keep is None else self.entries[len(self.entries) - keep :]
        return {"segments": self.state(), "device_traces": [kept], "allocator_settings": {"max_split_size": -1}}
