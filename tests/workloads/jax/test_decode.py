"""Decoding with every cache writes the same tokens."""

from __future__ import annotations

import pytest

pytest.importorskip("jax")
pytestmark = pytest.mark.jax


@pytest.mark.slow
def test_all_caches_write_the_same_tokens() -> None:
    from perfscope.workloads.jax import decode

    small = ["--size", "tiny", "--steps", "4", "--seq", "16"]
    written = {variant: decode.decode(decode.parsed([*small, "--variant", variant])) for variant in decode.VARIANTS}
    assert len(set(map(tuple, written.values()))) == 1
    assert len(set(written["carry"])) > 1, "tokens that differ show a wrong cache"
