"""Ledgers of processes, written as `recorder.py` does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perfscope.model.documents.run import RUN_FILE
from perfscope.plugins.job.recorder import FOLDER, INSIDE, SCHEMA
from tests.conftest import REPOSITORY

FIXTURE = REPOSITORY / "fixtures" / "cpu-attention-sdpa-item"
S = 1_000_000_000
BEGAN = 1_700_000_000 * S
"""Since 1970, of the first process."""

STACKS: Mapping[str, Sequence[tuple[str, int, str]]] = {
    "train": [("train.py", 40, "main"), ("train.py", 12, "step")],
    "slow": [("train.py", 40, "main"), ("train.py", 20, "augment")],
    "data": [("train.py", 38, "main"), ("site-packages/torch/utils/data/dataloader.py", 700, "__next__")],
    "eval": [("train.py", 50, "main"), ("train.py", 30, "evaluate"), ("train.py", 32, "forward")],
    "save": [("train.py", 60, "main"), ("site-packages/torch/serialization.py", 900, "save")],
    "load": [("train.py", 5, "main"), ("site-packages/torch/serialization.py", 1200, "load"), ("pickle.py", 1, "load")],
    "compile": [("train.py", 40, "main"), ("site-packages/torch/_inductor/compile_fx.py", 9, "compile_fx")],
    "ranks": [
        ("train.py", 44, "main"),
        ("site-packages/torch/distributed/distributed_c10d.py", 2800, "all_reduce"),
    ],
    "backward": [("train.py", 41, "main"), ("site-packages/torch/_tensor.py", 600, "backward")],
    "import": [("train.py", 1, "<module>"), ("<frozen importlib._bootstrap>", 1176, "_find_and_load")],
}


class Written:
    """A ledger that grows. Times in seconds; the first row begins two seconds after the process."""

    def __init__(self, run: Path, *, rank: int | None = 0, pid: int = 1, at: float = 0.0, **head: Any) -> None:
        self.path = run / FOLDER / f"host-{pid}-{BEGAN // S + round(at)}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.now = 102 * S
        self._texts: dict[str, int] = {}
        self._nodes: dict[tuple[str, int], int] = {}
        began = {"began_ns": 100 * S, "from_ns": 102 * S, "unix_ns": BEGAN + round(at * S)}
        self.add({"schema": SCHEMA, "host": "host", "pid": pid, "rank": rank, "program": "train.py", **began, **head})

    def add(self, line: Mapping[str, Any] | bytes) -> None:
        """Append a line, or bytes as they are."""
        with self.path.open("ab") as stream:
            stream.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")

    def row(self, at: Mapping[str, float], *, phase: int = INSIDE, core: float = 0.0, **more: Any) -> None:
        """Append a row with seconds by stack."""
        texts: list[str] = []
        nodes: list[list[int]] = []
        parts = [[self._node(name, texts, nodes), phase, round(ns * S)] for name, ns in at.items()]
        for key in {"stuck", "tail"} & set(more):  # given by stack too
            more[key] = [[self._node(name, texts, nodes), phase, round(ns * S)] for name, ns in dict(more[key]).items()]
        length = sum(ns for _, _, ns in parts) + round(core * S)
        self.add(
            {
                "texts": texts,
                "nodes": nodes,
                "from": self.now,
                "to": self.now + length,
                "at": parts,
                "core": round(core * S),
                **more,
            }
        )
        self.now += length

    def node(self, name: str) -> int:
        """The node of a stack that a row had before."""
        return self._nodes[name, len(STACKS[name]) - 1]

    def checkpoint(self, kind: str, seconds: float, place: str = "", *, ok: bool = True) -> list[Any]:
        """A checkpoint that ends now."""
        return [kind, "save", self.now - round(seconds * S), self.now, "train.py:60", ok, self.now, place]

    def _text(self, word: str, texts: list[str]) -> int:
        if word not in self._texts:
            self._texts[word] = len(self._texts)
            texts.append(word)
        return self._texts[word]

    def _node(self, name: str, texts: list[str], nodes: list[list[int]]) -> int:
        above = -1
        for depth, (file, line, function) in enumerate(STACKS[name]):
            key = (name, depth)
            if key not in self._nodes:
                nodes.append([above, self._text(file, texts), line, self._text(function, texts)])
                self._nodes[key] = len(self._nodes)
            above = self._nodes[key]
        return above


def killed_and_resumed(run: Path) -> Path:
    """A run with two ranks, one of which was killed and resumed."""
    run.mkdir()
    (run / RUN_FILE).write_bytes((FIXTURE / RUN_FILE).read_bytes())
    first = Written(run, rank=0, pid=1)
    first.row({"train": 30, "data": 10}, steps=30, resident=1 << 30)
    first.row({"save": 1}, checkpoints=[first.checkpoint("save", 1, "aa")])
    first.row({"train": 5}, steps=5)
    second = Written(run, rank=0, pid=2, at=60)
    second.row({"train": 30}, steps=30, checkpoints=[second.checkpoint("restore", 0, "aa")], loss=0.5, tail={})
    Written(run, rank=1, pid=3).row({"train": 88, "eval": 2}, steps=60, gpu=[0.5, 300.0, 1 << 33], tail={})
    return run
