"""A decoder-only transformer in ten numbers: its parameters, and the sizes that a mesh must divide.

From a Hugging Face ``config.json``, or from text: ``layers=80,hidden=8192,heads=64,kv_heads=8,ffn=28672,vocab=128256``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msgspec import Struct

from perfscope.model.errors import DataError, UsageError

MOST_BYTES = 1 << 20
MOST = 1 << 40

_PLAIN = ("bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "opt", "phi", "starcoder2")
"""Model types whose feed-forward has two matrices; all others have a third one, the gate."""

_KEYS: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok", "num_experts_per_token", "moe_topk"),
    "expert_ffn": ("moe_intermediate_size",),
    "shared_ffn": ("shared_expert_intermediate_size",),
    "dense_layers": ("first_k_dense_replace",),
}
"""Our name -> names in config.json, the most usual first."""

_REFUSED = {
    "q_lora_rank": "latent attention",
    "kv_lora_rank": "latent attention",
    "linear_num_key_heads": "linear attention",
    "ssm_cfg": "state-space layers",
    "mamba_d_state": "state-space layers",
    "is_encoder_decoder": "an encoder",
}
"""Keys of models that this description does not fit."""

TEXT_KEYS = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "gated", "tied", "experts",
             "experts_per_token", "expert_ffn", "shared_ffn", "dense_layers", "name")  # fmt: skip


class Decoder(Struct, frozen=True, kw_only=True):
    """Sizes of the model. Every layer has attention and a feed-forward, dense or of experts."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    """Features between the matrices of a dense feed-forward."""
    vocab: int
    gated: bool = True
    """Whether the feed-forward has a third matrix."""
    tied: bool = False
    """Whether the head is the transposed embedding."""
    experts: int = 0
    experts_per_token: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    """Features of the expert that every token visits, besides its own; 0 without one."""
    dense_layers: int = 0
    """Layers with a dense feed-forward in a model with experts."""
    longest: int | None = None
    """Longest sequence that the configuration allows; None if unknown."""
    notes: tuple[str, ...] = ()
    """Properties of the model that are not modelled."""

    @property
    def queries(self) -> int:
        """Features of all queries."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Features of all keys, and of all values."""
        return self.kv_heads * self.head_dim

    @property
    def matrices(self) -> int:
        """Matrices of a feed-forward."""
        return 3 if self.gated else 2

    @property
    def expert_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def attention_parameters(self) -> int:
        """Parameters of the attention of one layer: queries, keys, values, output."""
        return self.hidden * (2 * self.queries + 2 * self.keys)

    @property
    def one_expert(self) -> int:
        """Parameters of one expert."""
        return self.matrices * self.hidden * self.expert_ffn

    @property
    def dense_parameters(self) -> int:
        """Parameters of all layers that are not in experts: attention, dense feed-forwards, routers, norms."""
        dense = (self.layers - self.expert_layers) * self.matrices * self.hidden * self.ffn
        shared = self.expert_layers * self.hidden * (self.matrices * self.shared_ffn + self.experts)
        return self.layers * (self.attention_parameters + 2 * self.hidden) + dense + shared

    @property
    def expert_parameters(self) -> int:
        """Parameters of all experts of all layers."""
        return self.expert_layers * self.experts * self.one_expert

    @property
    def embedding(self) -> int:
        """Parameters of the embedding; the head has as many, or shares them."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """Parameters of the model."""
        return self.dense_parameters + self.expert_parameters + self.embedding * (1 if self.tied else 2) + self.hidden

    @property
    def active_parameters(self) -> int:
        """Parameters that multiply one token: of experts only those that it visits, and the head."""
        visited = self.expert_layers * self.experts_per_token * self.one_expert
        return self.dense_parameters + visited + self.embedding

    def model_flops(self, sequence: int) -> int:
        """FLOPs per token of forward and backward without recomputation, as papers count them for their MFU.

        Six per active parameter, and ``12 x layers x queries x sequence`` for scores that ignore the causal mask
        (Chowdhery et al. 2022, PaLM, appendix B).
        """
        return 6 * self.active_parameters + 12 * self.layers * self.queries * sequence


def read_decoder(text: str) -> Decoder:
    """The model of ``--model``: the path of a config.json (or its folder), or ``name=value`` pairs.

    ``UsageError`` or ``DataError`` in one line.
    """
    path = Path(text)
    if "=" in text and not path.exists():
        return _from_text(text)
    return from_config(_read_json(path / "config.json" if path.is_dir() else path), str(path))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise DataError(f"{path}: larger than {MOST_BYTES >> 20} MiB, not a model configuration")
        document = json.loads(data)
    except OSError as error:
        raise DataError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON, so not a config.json of a model") from error
    if not isinstance(document, dict):
        raise DataError(f"{path}: not a config.json of a model")
    return document


def from_config(document: dict[str, Any], where: str) -> Decoder:
    """The model of a Hugging Face configuration. ``DataError`` names the key that is missing or not understood."""
    inner = document.get("text_config")
    values = inner if isinstance(inner, dict) else document
    refused = next((key for key in _REFUSED if values.get(key)), None)
    if refused is not None:
        raise DataError(f"{where}: {refused}: {_REFUSED[refused]} is not modelled; give the program itself to plan it")
    given = {name: number for name, keys in _KEYS.items() if (number := _first(values, keys, where)) is not None}
    kind = str(values.get("model_type", document.get("model_type", "")))
    shared = values.get("n_shared_experts")
    if "ffn" not in given and "hidden" in given and kind in _PLAIN:
        given["ffn"] = 4 * given["hidden"]
    if isinstance(shared, int) and shared > 0 and "shared_ffn" not in given:
        given["shared_ffn"] = shared * given.get("expert_ffn", given.get("ffn", 0))
    longest = values.get("max_position_embeddings", values.get("n_positions"))
    # configurations of these leave the key out, and tie
    usual = kind in ("gpt2", "bloom", "opt") or kind.startswith("gemma")
    tied = values.get("tie_word_embeddings", document.get("tie_word_embeddings", usual))
    given.setdefault("dense_layers", _dense_layers(values, given.get("layers", 0)))
    return _decoder(
        where,
        given,
        name=str(document.get("_name_or_path") or kind or "model")[:80],
        gated=kind not in _PLAIN,
        tied=bool(tied),
        longest=longest if type(longest) is int and longest > 0 else None,
        source=_KEYS,
        notes=_notes(values),
    )


def _dense_layers(values: dict[str, Any], layers: int) -> int:
    """Layers that have no experts, of models that name them, or that have experts in every n-th layer."""
    named, step = values.get("mlp_only_layers"), values.get("decoder_sparse_step")
    dense = len(named) if isinstance(named, list) else 0
    if type(step) is int and step > 1:
        dense = max(dense, layers - layers // step)
    return min(dense, layers)


def _notes(values: dict[str, Any]) -> tuple[str, ...]:
    window = values.get("sliding_window")
    if type(window) is int and values.get("use_sliding_window") is not False:
        return (f"the window of attention (sliding_window {window:,}) is not modelled: whole sequences are",)
    return ()


def _first(values: dict[str, Any], keys: tuple[str, ...], where: str) -> int | None:
    key = next((key for key in keys if values.get(key) is not None), None)
    if key is None:
        return None
    number = values[key]
    if type(number) is not int or not 0 <= number <= MOST:
        raise DataError(f"{where}: {key}: not a whole number")
    return number


def _from_text(text: str) -> Decoder:
    given: dict[str, int] = {}
    name = "model"
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if key not in TEXT_KEYS or not equals:
            raise UsageError(f"--model: {part.strip()[:40]}: unknown size; known: {', '.join(TEXT_KEYS)}")
        if key == "name":
            name = value[:80]
            continue
        if not value.isdigit() or int(value) > MOST:
            raise UsageError(f"--model: {key}: not a whole number: {value[:40]}")
        given[key] = int(value)
    gated, tied = bool(given.pop("gated", 1)), bool(given.pop("tied", 0))
    return _decoder("--model", given, name=name, gated=gated, tied=tied, longest=None, source={})


def _decoder(
    where: str,
    given: dict[str, int],
    *,
    name: str,
    gated: bool,
    tied: bool,
    longest: int | None,
    source: dict[str, tuple[str, ...]],
    notes: tuple[str, ...] = (),
) -> Decoder:
    for key in ("layers", "hidden", "heads", "vocab"):
        if not given.get(key):
            raise DataError(f"{where}: {source.get(key, (key,))[0]} is missing")
    given.setdefault("kv_heads", given["heads"])
    if "head_dim" not in given:
        if given["hidden"] % given["heads"]:
            raise DataError(f"{where}: {given['heads']} heads do not divide {given['hidden']} features; give head_dim")
        given["head_dim"] = given["hidden"] // given["heads"]
    if given.get("experts", 0) > 1:
        given.setdefault("expert_ffn", given.get("ffn", 0))
        given.setdefault("ffn", given["expert_ffn"])
        if not given.get("experts_per_token") or not given["expert_ffn"]:
            raise DataError(
                f"{where}: {given['experts']} experts need experts_per_token and their features, expert_ffn"
            )
        if given.get("dense_layers", 0) > given["layers"]:
            raise DataError(f"{where}: {given['dense_layers']} dense layers of {given['layers']}")
    else:
        for key in ("experts", "experts_per_token", "expert_ffn", "shared_ffn", "dense_layers"):
            given.pop(key, None)
    if not given.get("ffn"):
        raise DataError(f"{where}: {source.get('ffn', ('ffn',))[0]} is missing")
    if given["heads"] % given["kv_heads"]:
        raise DataError(f"{where}: {given['kv_heads']} heads of keys do not divide {given['heads']} heads")
    return Decoder(name=name, gated=gated, tied=tied, longest=longest, notes=notes, **given)
