"""Decoding with every cache writes the same tokens, and adapters train the same however they are computed."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def test_all_caches_write_the_same_tokens() -> None:
    from perfscope.workloads import decode

    written = {
        variant: decode.decode(decode.parsed(["--size", "tiny", "--steps", "9", "--variant", variant]))
        for variant in decode.VARIANTS
    }
    assert len(set(map(tuple, written.values()))) == 1
    assert len(set(written["static"])) > 1, "tokens that differ show a wrong cache"


def test_adapters_train_the_same() -> None:
    from perfscope.workloads import lora

    small = ["--size", "tiny", "--steps", "4"]
    expected = lora.train(lora.parsed(small))
    assert lora.train(lora.parsed([*small, "--variant", "merged"])) == pytest.approx(expected, rel=1e-5)
    assert lora.train(lora.parsed([*small, "--defect", "trained-base"])) == pytest.approx(expected, rel=1e-5)
    assert expected[-1] < expected[0]
