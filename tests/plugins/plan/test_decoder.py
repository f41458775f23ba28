"""Models from their configurations: parameters as published, and errors that name the key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfscope.model.errors import DataError, UsageError
from perfscope.plugins.plan.decoder import read_decoder
from perfscope.plugins.plan.kernels import Pricer, head_work, layer_work
from perfscope.plugins.plan.options import comma, fixed_axes, share
from tests.plugins.plan.problems import DENSE, EXPERTS, problem

LLAMA_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
}  # fmt: skip
MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8,
    "num_experts_per_tok": 2,
}  # fmt: skip
GEMMA = {
    "model_type": "gemma3", "text_config": {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_attention_heads": 8,
        "num_hidden_layers": 34, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208,
        "tie_word_embeddings": True,
    },
}  # fmt: skip


def written(folder: Path, document: dict[str, Any]) -> str:
    (folder / "config.json").write_text(json.dumps(document))
    return str(folder)


@pytest.mark.parametrize(
    ("document", "parameters"),
    [(LLAMA_8B, 8_030_261_248), (MIXTRAL, 46_702_792_704), (GEMMA, 3_880_000_000)],
    ids=["llama", "mixtral", "gemma"],
)
def test_parameters_as_published(tmp_path: Path, document: dict[str, Any], parameters: int) -> None:
    model = read_decoder(written(tmp_path, document))
    assert model.parameters == pytest.approx(parameters, rel=1e-9 if parameters % 10 else 5e-3)


QWEN = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_attention_heads": 32, "num_hidden_layers": 48, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
    "num_experts": 128, "num_experts_per_tok": 8, "tie_word_embeddings": False,
}  # fmt: skip


def test_published_models_with_experts_and_windows(tmp_path: Path) -> None:
    model = read_decoder(written(tmp_path, QWEN))
    assert model.parameters == pytest.approx(30.5e9, rel=0.01)
    assert model.active_parameters + model.embedding == pytest.approx(3.3e9, rel=0.03)
    assert read_decoder(written(tmp_path, {**QWEN, "mlp_only_layers": [0, 1]})).expert_layers == 46
    assert read_decoder(written(tmp_path, {**QWEN, "decoder_sparse_step": 2})).expert_layers == 24
    gemma = {"model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42,
             "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "vocab_size": 256000,
             "sliding_window": 4096}  # fmt: skip
    model = read_decoder(written(tmp_path, gemma))
    assert model.parameters == pytest.approx(9.24e9, rel=0.01)  # tied, though the key is absent
    assert "sliding_window 4,096" in model.notes[0]


def test_active_parameters_of_experts(tmp_path: Path) -> None:
    model = read_decoder(written(tmp_path, MIXTRAL))
    assert model.active_parameters == pytest.approx(12.7e9, rel=0.01)  # 12.9 with the embedding, as published


def test_sizes_as_text() -> None:
    model = read_decoder("layers=2,hidden=64,heads=4,ffn=256,vocab=100,gated=0,tied=1,name=small")
    assert (model.name, model.kv_heads, model.head_dim, model.gated) == ("small", 4, 16, False)
    assert model.parameters == 2 * (4 * 64 * 64 + 2 * 64 * 256 + 2 * 64) + 100 * 64 + 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"kv_lora_rank": 512}, "latent attention is not modelled"),
        ({"num_key_value_heads": 5}, "5 heads of keys do not divide 32 heads"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers: not a whole number"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_decoder(written(tmp_path, {**LLAMA_8B, **change}))


def test_other_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("print()")
    with pytest.raises(DataError, match="not JSON"):
        read_decoder(str(file))
    with pytest.raises(UsageError, match=r"width=3: unknown size"):
        read_decoder("width=3")


def test_flops_of_kernels_are_those_of_the_parameters() -> None:
    """Products: six FLOPs per active parameter and token, except that the router is in both."""
    from perfscope.analyzers.predict import factors_for

    for model in (DENSE, EXPERTS):
        case = problem(model)
        pricer = Pricer(case.target, factors_for(case.target), "bfloat16")
        layer = layer_work(model, pricer, sequences=2, sequence=1024, tensor=1, context=1, expert=1)
        head = head_work(model, pricer, tokens=2048, tensor=1)
        products = [parts.products.flops for parts in (layer.forward, layer.inputs, layer.weights)]
        total = model.layers * sum(products) + head.forward.flops + head.backward("none").flops
        norms = model.layers * 2 * model.hidden
        assert total == pytest.approx(6 * 2048 * (model.active_parameters - norms), rel=1e-6)
        scores = model.layers * (layer.forward.attention.flops + layer.inputs.attention.flops)
        # causal: half of what papers count forward; five products backward where they count four
        assert scores == pytest.approx(2048 * 12 * model.layers * model.queries * 1024 / 2 * 7 / 6, rel=1e-6)


def test_options() -> None:
    assert comma("--checkpoint", "full, none", ("none", "dots", "full")) == ("none", "full")
    assert share("--memory-headroom", "12.5%") == share("--memory-headroom", "0.125") == 0.125
    assert fixed_axes(("tensor=8,fsdp=2", "data=1")) == {"tensor": 8, "fsdp": 2, "data": 1}
    for call in (lambda: comma("--offload", "disk", ("none",)), lambda: share("--memory-headroom", "95%"),
                 lambda: fixed_axes(("width=2",))):  # fmt: skip
        with pytest.raises(UsageError):
            call()
