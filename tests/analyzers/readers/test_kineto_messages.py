"""Kineto: the peer of a send or receive on the host, from the op that began it and the group that numbers it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.load import load_one
from perfscope.analyzers.ranks.local import locals_of
from perfscope.analyzers.readers.kineto_json.messages import peer_in_group
from perfscope.analyzers.trace import MISSING, Trace

SECRET = "do-not-read-4711"


def span(category: str, name: str, start: float, length: float, thread: int = 1, inputs: Any = None) -> dict[str, Any]:
    args = {} if inputs is None else {"Concrete Inputs": inputs}
    found = {"ph": "X", "cat": category, "name": name, "pid": 9, "tid": thread, "ts": start, "dur": length}
    return {**found, "args": args}


def message(operation: str, start: float, peer: int, thread: int = 1) -> list[dict[str, Any]]:
    """The op and the span that begins in it and ends behind it."""
    op = "c10d::send" if operation == "send" else "c10d::recv_"
    return [
        span("cpu_op", op, start, 8, thread, ["", "", str(peer), "0"]),
        span("user_annotation", f"gloo:{operation}", start + 5, 100, thread),
    ]


def written(
    folder: Path, events: Sequence[dict[str, Any]], ranks: Sequence[int] = (0, 1, 2, 3), groups: int = 1
) -> Trace:
    config = [
        {"pg_name": str(number), "backend_config": "cpu:gloo", "pg_size": len(ranks), "ranks": list(ranks)}
        for number in range(groups)
    ]
    head = {"backend": "gloo", "rank": 0, "world_size": 8, "pg_config": config}
    file = folder / "trace.json"
    file.write_text(json.dumps({"schemaVersion": 1, "distributedInfo": head, "traceEvents": list(events)}))
    return load_one(file)


def peers(trace: Trace) -> list[tuple[str, int | None]]:
    return [(one.operation, one.peer) for one in trace.fact(locals_of)]


def test_the_op_in_which_a_span_began_tells_its_peer(tmp_path: Path) -> None:
    events = message("recv", 0, 1) + message("send", 200, 3) + message("recv", 400, 2)
    assert peers(written(tmp_path, events)) == [("recv", 1), ("send", 3), ("recv", 2)]


def test_messages_that_are_under_way_at_once_are_told_apart(tmp_path: Path) -> None:
    """isend, irecv: the spans overlap, each began in an op of its own."""
    events = message("send", 0, 1) + message("recv", 10, 2) + message("send", 20, 3)
    assert peers(written(tmp_path, events)) == [("send", 1), ("recv", 2), ("send", 3)]


def test_threads_are_told_apart(tmp_path: Path) -> None:
    events = message("send", 0, 1, thread=1) + message("send", 2, 3, thread=2)
    assert peers(written(tmp_path, events)) == [("send", 1), ("send", 3)]


@pytest.mark.parametrize("ranks", [(4, 5, 6, 7), (7, 4, 6, 5)])
def test_the_number_is_one_of_the_group(tmp_path: Path, ranks: tuple[int, ...]) -> None:
    assert peers(written(tmp_path, message("send", 0, 2), ranks)) == [("send", ranks[2])]


@pytest.mark.parametrize(("ranks", "groups", "peer"), [((0, 1), 1, 5), ((0, 1, 2), 2, 1), ((), 1, 1), ((0, 1), 0, 1)])
def test_without_the_group_nobody_knows_the_rank(
    tmp_path: Path, ranks: tuple[int, ...], groups: int, peer: int
) -> None:
    """Not in the group; of which of two groups is not recorded; a group without members; no group."""
    (one,) = written(tmp_path, message("send", 0, peer), ranks, groups).fact(locals_of)
    assert one.peer is None


def test_a_span_that_no_op_or_another_began_has_no_peer(tmp_path: Path) -> None:
    alone = [span("user_annotation", "gloo:send", 0, 50), *message("recv", 100, 2)]
    late = [span("cpu_op", "c10d::send", 300, 8, 1, ["", "", "1", "0"]), span("user_annotation", "gloo:send", 320, 9)]
    assert peers(written(tmp_path, [*alone, *late])) == [("send", None), ("recv", 2), ("send", None)]


def test_two_spans_in_one_op_are_nobody_s(tmp_path: Path) -> None:
    events = [*message("send", 0, 1), span("user_annotation", "gloo:send", 6, 50)]
    assert peers(written(tmp_path, events)) == [("send", None), ("send", None)]


def test_no_other_concrete_input_is_read(tmp_path: Path) -> None:
    inputs = [SECRET, SECRET, "1", SECRET]
    events = [
        span("cpu_op", "c10d::send", 0, 8, 1, inputs), span("user_annotation", "gloo:send", 5, 100),
        span("cpu_op", "aten::full", 200, 8, 1, [SECRET, SECRET, "1"]),
        span("cpu_op", "c10d::broadcast_", 300, 8, 1, ["", "", "1", "0"]),
        span("user_annotation", "gloo:broadcast", 305, 9),
    ]  # fmt: skip
    trace = written(tmp_path, events)
    assert peers(trace) == [("send", 1), ("broadcast", None)]
    assert not any(SECRET in text for text in trace.strings)


@pytest.mark.parametrize(
    ("written", "peer"),
    [
        (b'["","","3","0"]', 3), (b'["","",3,0]', 3), (b'["","","-1","0"]', MISSING), (b'["","","x","0"]', MISSING),
        (b'["",""]', MISSING), (b"", MISSING), (b"7", MISSING), (b'["","",[1],"0"]', MISSING), (b'["","","3"', MISSING),
        (b'["","","99999999999999999999","0"]', MISSING), (b"[" * 5000, MISSING),
    ],
)  # fmt: skip
def test_what_is_not_as_torch_writes_it_tells_nothing(written: bytes, peer: int) -> None:
    assert peer_in_group(written) == peer
