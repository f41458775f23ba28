from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.estimate.product_tiles import Sizes, padded_share, sizes_of, wave_share
from perfscope.analyzers.hlo.module import HloModule
from tests.hlo_build import hlo_module


def sizes(rows: int, columns: int, inner: int = 4096, batch: int = 1) -> Sizes:
    return Sizes(batch=batch, rows=rows, columns=columns, inner=inner)


@pytest.mark.parametrize(
    ("one", "share"),
    [
        (sizes(128 * 12, 128 * 11), 1.0),  # 132 tiles: one wave
        (sizes(128 * 19, 128 * 7), 133 / 264),  # one tile more: two waves
        (sizes(128, 128, batch=66), 0.5),
        (sizes(128 * 12, 128 * 11 - 64), 1 - 64 / (128 * 11)),  # half a tile is padding
    ],
)
def test_waves_and_edges(one: Sizes, share: float) -> None:
    assert wave_share(one, tile=(128, 128), cores=132, split=0) == pytest.approx(share)


def test_a_long_contraction_is_divided_among_idle_cores() -> None:
    long = sizes(256, 256, inner=65536)
    assert wave_share(long, tile=(128, 128), cores=132, split=0) == pytest.approx(4 / 132)
    assert wave_share(long, tile=(128, 128), cores=132, split=1024) == pytest.approx(1.0)


@given(st.integers(1, 10_000), st.integers(1, 10_000), st.integers(1, 100_000), st.integers(1, 64), st.integers(1, 304))
def test_shares_are_shares(rows: int, columns: int, inner: int, batch: int, cores: int) -> None:
    one = sizes(rows, columns, inner, batch)
    for split in (0, 1024):
        assert 0 < wave_share(one, tile=(128, 256), cores=cores, split=split) <= 1
    assert 0 < padded_share(one, 128) <= 1


def test_padding_of_a_systolic_unit() -> None:
    assert padded_share(sizes(8, 128, 256), 128) == 1
    assert padded_share(sizes(8, 64, 256), 128) == pytest.approx(0.5)
    assert padded_share(sizes(8, 128, 128), 256) == pytest.approx(0.25)


def entry(text: str) -> tuple[HloModule, Sizes | None]:
    module = hlo_module(text)
    computation = module.entry_computation()
    return module, sizes_of(module, computation, computation.root)


def test_sizes_of_products_wherever_they_stand() -> None:
    dot = "dot(%a, %b), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}"
    _, plain = entry(
        "ENTRY %main (a: bf16[4,64,32], b: bf16[4,32,16]) -> bf16[4,64,16] {\n"
        "  %a = bf16[4,64,32] parameter(0)\n  %b = bf16[4,32,16] parameter(1)\n"
        f"  ROOT %d = bf16[4,64,16] {dot}\n}}\n"
    )
    _, fused = entry(
        "%body (a: bf16[4,64,32], b: bf16[4,32,16]) -> bf16[4,64,16] {\n"
        "  %a = bf16[4,64,32] parameter(0)\n  %b = bf16[4,32,16] parameter(1)\n"
        f"  ROOT %d = bf16[4,64,16] {dot}\n}}\n"
        "ENTRY %main (p: bf16[4,64,32], q: bf16[4,32,16]) -> bf16[4,64,16] {\n"
        "  %p = bf16[4,64,32] parameter(0)\n  %q = bf16[4,32,16] parameter(1)\n"
        "  ROOT %f = bf16[4,64,16] fusion(%p, %q), kind=kCustom, calls=%body\n}\n"
    )
    assert plain == fused == Sizes(batch=4, rows=64, columns=16, inner=32)
    _, none = entry(
        "ENTRY %main (a: f32[8]) -> f32[8] {\n  %a = f32[8] parameter(0)\n  ROOT %n = f32[8] negate(%a)\n}\n"
    )
    assert none is None
