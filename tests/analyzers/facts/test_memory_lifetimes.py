"""How long activations wait: from the end of the forward call to the node that lets them go."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.facts.memory_lifetimes import memory_lifetimes
from perfscope.analyzers.readers import torch_memory
from tests.analyzers.facts.memory_build import MemoryBuilder

NODE = "autograd::engine::evaluate_function: MulBackward0"


def _pass() -> MemoryBuilder:
    b = MemoryBuilder()
    b.python("nn.Module: Net_0", 0, 40)
    b.python("nn.Module: Block_0", 5, 15)
    b.op("aten::mul", 6, 8, sequence=1, forward_thread=0)
    b.op("aten::mul", 20, 22, sequence=2, forward_thread=0)
    b.op(NODE, 60, 70, sequence=2, forward_thread=1)
    b.op(NODE, 80, 95, sequence=1, forward_thread=1)
    b.make(1, 100, 7)
    b.make(2, 10, 21)
    b.free(2, 65)
    b.free(1, 90)
    return b


def test_activations_wait_from_their_call_to_their_node():
    (found,) = memory_lifetimes(_pass().build())
    assert found.bytes.tolist() == [100, 10]
    assert found.made.tolist() == [7_000, 21_000]
    assert found.used_until.tolist() == [15_000, 40_000]  # Block_0 returns, Net_0 returns
    assert found.needed_from.tolist() == [80_000, 60_000]
    assert found.freed.tolist() == [90_000, 65_000]
    assert found.idle.tolist() == [65_000, 20_000]
    assert found.idle_byte_ns == 100 * 65_000 + 10 * 20_000
    assert [(one.module, one.bytes, one.idle_byte_ns, one.longest_ns) for one in found.by_module] == [
        ("Net_0.Block_0", 100, 6_500_000, 65_000),
        ("Net_0", 10, 200_000, 20_000),
    ]


def test_what_is_not_saved_is_no_activation():
    b = MemoryBuilder()
    b.op("aten::mul", 6, 8, sequence=1, forward_thread=0)
    b.make(1, 100, 7)
    b.free(1, 7.5)
    assert memory_lifetimes(b.build()) == ()


def test_sums_beyond_64_bits_are_exact():
    b = MemoryBuilder()
    year = 365 * 86400 * 1e6
    b.op("aten::mul", 0, 2, sequence=1, forward_thread=0)
    b.op(NODE, year, year + 5, sequence=1, forward_thread=1)
    b.make(1, 1 << 40, 1)
    b.free(1, year + 1)
    (found,) = memory_lifetimes(b.build())
    assert found.idle_byte_ns == (1 << 40) * (round(year * 1000) - 2000) > 1 << 63


@pytest.mark.corpus
def test_a_recorded_step_by_its_stacks(corpus: Path):
    """No spans in a snapshot: from made to freed, and the sum over modules is the sum over blocks."""
    trace = torch_memory.read(corpus / "torch_mem" / "assignment2-systems__medium512_train.pickle.gz")
    (found,) = memory_lifetimes(trace)
    assert int(found.bytes.sum()) == 7_044_308_992 - 40_960_000  # the logits are held by a variable to the end
    assert (found.idle >= 0).all()
    assert (found.idle <= found.freed - found.made).all()
    assert sum(one.idle_byte_ns for one in found.by_module) == found.idle_byte_ns
