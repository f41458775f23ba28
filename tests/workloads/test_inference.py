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


def test_a_batch_writes_the_same_texts_however_its_rows_are_used() -> None:
    from perfscope.workloads.inference import serve

    small = ["--size", "tiny", "--steps", "3"]
    written = [serve.serve(serve.parsed([*small, "--variant", variant])) for variant in serve.VARIANTS]
    assert written[0] == written[1]
    assert len({len(text) for text in written[0]}) > 1


def test_samplers_draw_the_same_tokens() -> None:
    from perfscope.workloads.inference import sample

    small = ["--size", "tiny", "--steps", "9"]
    assert sample.sample(sample.parsed([*small, "--defect", "rows"])) == sample.sample(sample.parsed(small))


def test_speculation_writes_what_the_large_model_writes_alone() -> None:
    from perfscope.workloads.data import batches
    from perfscope.workloads.inference import speculate
    from perfscope.workloads.inference.model import build

    options = speculate.parsed(["--size", "tiny", "--steps", "6"])
    text = speculate.speculate(options)
    assert speculate.speculate(speculate.parsed(["--size", "tiny", "--steps", "6", "--defect", "accept"])) == text
    assert len(text) > 7, "some drafts are accepted"
    large = build(options, options.size.seq + 7 * (speculate.DRAFTED + 1), batch=1)
    tokens_1L, first_1 = next(iter(batches(options)))[:1, :-1], torch.zeros(1, dtype=torch.int64)
    with torch.inference_mode():
        for token in text:
            (best,) = speculate.likeliest(large, tokens_1L, first_1)[-1:]
            assert best.item() == token
            first_1, tokens_1L = first_1 + tokens_1L.shape[1], best[None, None]


def test_defects_of_diffusion_draw_the_same_picture() -> None:
    from perfscope.workloads.vision import diffusion

    small = ["--size", "tiny", "--steps", "4"]
    expected = diffusion.sample(diffusion.parsed(small))
    for defect in diffusion.DEFECTS:
        drawn = diffusion.sample(diffusion.parsed([*small, "--defect", defect]))
        assert drawn == pytest.approx(expected, rel=1e-4), defect


def test_quantised_layers_compute_the_same_in_a_kernel_and_written_out() -> None:
    from perfscope.workloads.inference import quantized

    small = ["--size", "tiny", "--layers", "1", "--steps", "1", "--variant"]
    means = [quantized.infer(quantized.parsed([*small, variant])) for variant in quantized.VARIANTS]
    # A kernel of 8 bits rounds to bfloat16 after both scales, the plain version before.
    for plain, kernel, allowed in zip(means[::2], means[1::2], (1e-2, 1e-2, 1e-5), strict=True):
        assert kernel == pytest.approx(plain, rel=allowed)
    assert means[1] != means[3] != means[5]


def test_a_decoder_of_latents_makes_the_same_pictures_in_both_layouts() -> None:
    from perfscope.workloads.vision import autoencoder

    small = ["--size", "tiny", "--steps", "2"]
    expected = autoencoder.decode(autoencoder.parsed(small))
    for defect in autoencoder.DEFECTS:
        assert autoencoder.decode(autoencoder.parsed([*small, "--defect", defect])) == pytest.approx(expected, rel=1e-5)


def test_adapters_train_the_same() -> None:
    from perfscope.workloads import lora

    small = ["--size", "tiny", "--steps", "4"]
    expected = lora.train(lora.parsed(small))
    assert lora.train(lora.parsed([*small, "--variant", "merged"])) == pytest.approx(expected, rel=1e-5)
    assert lora.train(lora.parsed([*small, "--defect", "trained-base"])) == pytest.approx(expected, rel=1e-5)
    for variant, twin in (("dora-merged", "dora"), ("quantised", "kept")):
        losses = [lora.train(lora.parsed([*small, "--variant", name])) for name in (variant, twin)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
        assert losses[0] != pytest.approx(expected, rel=1e-5)
    assert expected[-1] < expected[0]
