"""Lists of ops in the recorder of op graphs, against the ops and tags of the installed torch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
schema = pytest.importorskip("perfscope.profiler.torch.op_graph.recorder")
host_reads = pytest.importorskip("perfscope.profiler.torch.op_graph.host_reads")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not hasattr(torch.Tag, "reduction"), reason="ops and tags that this torch does not have"),
]


def test_reductions_that_older_torch_does_not_tag_are_those_of_the_tag() -> None:
    tagged = set()
    for name in torch._C._dispatch_get_all_op_names():
        packet, _, overload = name.removeprefix("aten::").partition(".")
        op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if name.startswith("aten::") and op is not None and torch.Tag.reduction in op.tags:
            tagged.add(f"aten.{packet}")
    assert tagged == schema.REDUCTION_TAGGED


def test_the_written_lists_hold_ops_that_torch_has_and_does_not_tag() -> None:
    def tagged(name: str, tag: Any) -> bool:
        packet = getattr(torch.ops.aten, name.removeprefix("aten."))  # AttributeError: no such op
        return all(tag in getattr(packet, overload).tags for overload in packet.overloads())

    assert not [name for name in schema.POINTWISE_UNTAGGED if tagged(name, torch.Tag.pointwise)]
    assert not [name for name in schema.REDUCTION_UNTAGGED if tagged(name, torch.Tag.reduction)]
    for name in (*schema.ALLOCATIONS, *schema.METADATA, *host_reads.HOST_READS, *host_reads.MASK_READS):
        assert hasattr(torch.ops.aten, name.removeprefix("aten.")), name
