"""Hashes and sketches of tensors, and memory that nothing has written."""

from __future__ import annotations

import math
from typing import Any

import pytest

from perfscope.plugins.fingerprint.document import mixed

torch = pytest.importorskip("torch")
DTYPES = ("bfloat16", "bool", "complex64", "float16", "float32", "float64", "float8_e4m3fn", "int16", "int64", "uint8")


@pytest.fixture
def measured() -> Any:
    from perfscope.plugins.fingerprint.torch.measure import Tables, to_host

    tables = Tables()

    def measure(tensor: Any) -> Any:
        found = tables.measure(tensor)
        to_host([found])
        return found

    return measure


def some(dtype: str, *shape: int) -> Any:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3
    return tensor > 0 if dtype == "bool" else tensor.to(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_hash_is_of_the_elements_in_order(measured: Any, dtype: str) -> None:
    tensor = some(dtype, 6, 5, 4)
    hashed = measured(tensor)
    assert measured(tensor.permute(2, 0, 1).contiguous().permute(1, 2, 0)).hash == hashed.hash
    assert measured(tensor.reshape(30, 4)).hash == hashed.hash
    assert hashed.row == measured(tensor[0].clone()).hash
    assert measured(tensor.transpose(0, 1)).hash != hashed.hash
    inside = torch.zeros(9, 5, 4).to(tensor.dtype)
    inside[1:7] = tensor
    assert measured(inside[1:7]).hash == hashed.hash


@pytest.mark.parametrize("place", [0, 1, 777, 1_048_576, 2_100_000])
@pytest.mark.parametrize("bit", [0, 13, 31])
def test_each_bit_counts(measured: Any, place: int, bit: int) -> None:
    tensor = torch.zeros(2_100_001, dtype=torch.int32)
    before = measured(tensor).hash
    tensor[place] = 1 << bit if bit < 31 else -(1 << 31)
    assert measured(tensor).hash != before


def test_pairs_of_changes_do_not_cancel(measured: Any) -> None:
    tensor = some("float32", 400)
    seen = {measured(tensor).hash}
    for one in range(0, 400, 7):
        flipped = tensor.clone()
        flipped[[one, (one + 2) % 400]] *= -1  # signs alone
        swapped = tensor.clone()
        swapped[[one, (one + 2) % 400]] = tensor[[(one + 2) % 400, one]]
        seen |= {measured(flipped).hash, measured(swapped).hash}
    assert len(seen) == 1 + 2 * len(range(0, 400, 7))


def test_the_tables_are_those_of_the_document() -> None:
    from perfscope.plugins.fingerprint.torch.measure import _odd

    wanted = [number - (1 << 64) if number >> 63 else number for number in (mixed(place) | 1 for place in range(100))]
    assert _odd(100)[:100].tolist() == wanted


def test_sketches_estimate_the_norm_of_a_difference(measured: Any) -> None:
    ratios = []
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        tensor, change = torch.randn(2, 5_000, generator=generator)
        one, other = measured(tensor).sketch, measured(tensor + 1e-3 * change).sketch
        ratios.append((math.dist(one[2:], other[2:]) / float(1e-3 * change.norm())) ** 2)
    mean = sum(ratios) / len(ratios)
    assert mean == pytest.approx(1.0, abs=0.2)
    assert measured(tensor).sketch[:2] == pytest.approx([float(tensor.double().sum()), float(tensor.abs().max())])
    assert measured(torch.tensor([1.0, math.nan])).sketch is None


@pytest.fixture
def watched() -> Any:
    """Records the ops of a call: ``watched(call)`` gives the lines of the step."""
    from pathlib import Path

    from perfscope.plugins.fingerprint.torch.measure import Tables
    from perfscope.plugins.fingerprint.torch.step import StepLog
    from perfscope.plugins.fingerprint.torch.unwritten import Storages, Unwritten
    from perfscope.plugins.fingerprint.torch.watch import Watch
    from perfscope.profiler.torch.op_graph.frames import Frames
    from perfscope.profiler.torch.op_graph.recorder import ModuleStack

    def run(call: Any) -> list[tuple[str, list[str | None], list[str | None]]]:
        storages = Storages()
        log = StepLog(Tables(), storages, Unwritten(storages))
        watch = Watch(Frames(torch.__file__, Path.cwd()), ModuleStack(), lambda: log)
        with watch:
            call()
        assert watch.failure is None
        rows = list(log.lines())
        hashes = {row[1]: row[5] for row in rows if row[0] == "v"}
        return [
            (row[1], [hashes[number] for number in row[6]], [hashes[number] for number in row[7]])
            for row in rows
            if row[0] == "o"
        ]

    return run


def scattered(buffer: Any) -> None:
    buffer.scatter_(0, torch.tensor([3, 5]), torch.tensor([1.0, 2.0]))
    buffer.add(1.0)


def indexed(buffer: Any) -> None:
    buffer[torch.tensor([3, 5])] = torch.tensor([1.0, 2.0])
    buffer.mul(2.0)


def sliced(buffer: Any) -> None:
    buffer[8:16].copy_(torch.arange(8.0))
    buffer.view(8, 8)[2].fill_(3.0)
    buffer.exp()


def whole(buffer: Any) -> None:
    buffer.normal_(generator=torch.Generator().manual_seed(0))
    buffer.exp()


@pytest.mark.parametrize("writes", [scattered, indexed, sliced, whole])
def test_elements_that_nothing_wrote_do_not_count(watched: Any, writes: Any) -> None:
    rows = []
    for fill in (1.5, -7.0):

        def program(fill: float = fill) -> None:
            buffer = torch.empty(64)
            buffer.numpy()[:] = fill  # no op: what an allocator may give
            writes(buffer)

        rows.append(watched(program))
    reads = [[name, inputs] for name, inputs, _ in rows[0]]
    assert reads == [[name, inputs] for name, inputs, _ in rows[1]]
    last = [row[-1] for row in rows]
    assert (last[0][2] == last[1][2]) is (writes is whole)  # what is read from it differs, the memory does not
    assert last[0][1] != [None]


def test_memory_without_any_write_has_no_hash(watched: Any) -> None:
    ((name, inputs, _),) = watched(lambda: torch.empty(16).sum())
    assert (name, inputs) == ("sum", [None])


def test_a_view_and_a_write_through_it(watched: Any) -> None:
    def program() -> None:
        weight = torch.arange(6.0).reshape(2, 3)
        weight.t().add_(1.0)
        weight.sum()

    rows = watched(program)
    hashes = {name: (inputs, outputs) for name, inputs, outputs in rows}
    assert hashes["sum"][0] != hashes["arange"][1]
    from perfscope.plugins.fingerprint.document import hex_of
    from perfscope.plugins.fingerprint.torch.measure import Tables

    assert hashes["sum"][0] == [hex_of(Tables().hash(torch.arange(1.0, 7.0)).item())]
