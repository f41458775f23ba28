"""Which values are the same: constants by what they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.checkpointing.xla_model.same import Sames
from perfscope.analyzers.hlo.flow import Flow
from perfscope.analyzers.readers.hlo import proto
from tests.hlo_build import hlo_module

PROGRAM = Path(__file__).parents[2] / "fixtures" / "h100-programs" / "attention-naive-scan-small-full.hlo.pb.xz"


@pytest.mark.parametrize(
    ("dims", "first", "second", "is_one"),
    [
        ("", "0.5", "0.5", True),
        ("", "0.5", "0.25", False),
        ("", "inf", "-inf", False),
        ("[2]", "{0.5, 1}", "{0.5, 1}", True),
        ("[2]", "{0.5, 1}", "{0.5, 2}", False),
    ],
)
def test_what_is_computed_with_another_constant_is_another_value(
    dims: str, first: str, second: str, is_one: bool
) -> None:
    shape = f"f32{dims or '[]'}"
    module = hlo_module(
        "ENTRY %main (x: f32[2]) -> (f32[2], f32[2]) {\n"
        "  %x = f32[2] parameter(0)\n"
        f"  %a = {shape} constant({first})\n  %b = {shape} constant({second})\n"
        f"  %wide_a = f32[2] broadcast(%a), dimensions={{{'0' if dims else ''}}}\n"
        f"  %wide_b = f32[2] broadcast(%b), dimensions={{{'0' if dims else ''}}}\n"
        "  %one = f32[2] multiply(%x, %wide_a)\n  %other = f32[2] multiply(%x, %wide_b)\n"
        "  ROOT %both = (f32[2], f32[2]) tuple(%one, %other)\n}"
    )
    flow = Flow(module)
    sames = Sames(flow)
    one, other = (sames.of(flow.numbers[module.entry, name]) for name in ("one", "other"))
    assert (one == other) is is_one


def test_constants_of_a_proto_are_told_apart() -> None:
    module = proto.read(PROGRAM).hlo[0]
    constants = [one for _, one in module.instructions() if one.opcode == "constant"]
    assert all(one.literal for one in constants)
    numbers = {one.literal for one in constants if one.shape.dtype == "f32" and not one.shape.dims}
    counters = {one.value: one.literal for one in constants if one.value is not None}
    assert len(numbers) > 10  # of a gelu, a softmax, an optimizer
    assert len(set(counters.values())) == len(counters) > 3
