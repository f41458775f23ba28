"""Equivalent names in two frameworks: ``h.0.attn.q_proj.weight`` and ``blocks_0/attention/query/kernel``."""

from __future__ import annotations

import re
from functools import lru_cache

from msgspec import Struct

_SHAPE_SUFFIX = re.compile(r"_[A-Z]+$")
"""``qkv_DCHK``: axes of an array, in the style of this project's workloads and of many JAX programs."""
_LORA = re.compile(r"lora_?([ab])", re.IGNORECASE)
"""The two factors of a low-rank adapter: their letters do not name axes."""
_NUMBERED = re.compile(r"(.*?)_?(?<!\d)(\d++)")
_SAME = {
    "attention": "attn self_attn self_attention mha attn_layer",
    "mlp": "ffn feed_forward feedforward ff",
    "block": "blocks layer layers h",
    "q": "query q_proj wq to_q query_proj",
    "k": "key k_proj wk to_k key_proj",
    "v": "value_proj v_proj wv to_v value",
    "qkv": "c_attn in_proj wqkv query_key_value qkv_proj to_qkv in_proj_weight in_proj_bias",
    "out": "o o_proj out_proj wo c_proj proj to_out dense_out output",
    "gate": "gate_proj w1 wi_0",
    "gate_up": "gate_up_proj",
    "lora_a": "lora_down",
    "lora_b": "lora_up",
    "magnitude": "lora_magnitude_vector dora_scale dora_magnitude",
    "up": "up_proj w3 wi_1 fc1 c_fc wi",
    "down": "down_proj w2 fc2",
    "norm": "ln layernorm layer_norm rmsnorm rms_norm norm_f ln_f final_norm",
    "norm1": "ln_1 ln1 norm_1 input_layernorm attention_norm",
    "norm2": "ln_2 ln2 norm_2 post_attention_layernorm ffn_norm",
    "embedding": "embed embeddings embed_tokens wte tok_embeddings token_embedding embedder",
    "head": "lm_head unembed logits",
    "running_mean": "mean",
    "running_var": "var",
}
_MEANING = {word: meaning for meaning, words in _SAME.items() for word in words.split()}
_ROLES = {
    **dict.fromkeys(["weight", "kernel", "w", "scale", "gamma", "g", "embedding_table"], "weight"),
    **dict.fromkeys(["bias", "b", "shift", "beta", "offset"], "bias"),
}
_EMPTY = frozenset(
    (
        *("params", "model", "module", "transformer", "value", "raw_value", "batch_stats"),
        *("base_model", "base_layer", "default"),  # of adapters
    )
)
"""Words without meaning, which are dropped unless the name has no others."""


class Name(Struct, frozen=True):
    """A name in words. ``role``: of the array in its layer; ``''``: unknown. ``indices``: of layers, in order."""

    words: tuple[str, ...]
    role: str
    indices: tuple[int, ...]


@lru_cache(maxsize=65536)
def parse_name(name: str) -> Name:
    """The words of a name of a weight or of a layer."""
    words: list[str] = []
    indices: list[int] = []
    for part in re.split(r"[./\[\]]+", name):
        factor = _LORA.fullmatch(part)
        word = f"lora_{factor[1].lower()}" if factor else _SHAPE_SUFFIX.sub("", part).lower()
        if word.isdigit():
            indices.append(int(word))
            continue
        numbered = None if word in _MEANING or word in _SAME else _NUMBERED.fullmatch(word)
        if numbered and numbered[1]:
            word = numbered[1]
            indices.append(int(numbered[2]))
        if word:
            words.append(_MEANING.get(word, word))
    role = _ROLES.get(words[-1], "") if words else ""
    if role and len(words) > 1:
        words.pop()
    kept = [word for word in words if word not in _EMPTY] or words
    return Name(tuple(kept), role, tuple(indices))


def likeness(one: Name, other: Name) -> float:
    """0 (nothing in common) to 2 (the same words); from 1 on the last words agree. Roles that differ: 0."""
    if one.role and other.role and one.role != other.role:
        return 0.0
    shared = _common(one.words, other.words)
    last = bool(one.words and other.words) and one.words[-1] == other.words[-1]
    return 2 * shared / max(len(one.words) + len(other.words), 1) + last


def _common(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """Length of the longest common subsequence."""
    lengths = [0] * (len(other) + 1)
    for word in one:
        previous = 0
        for index, there in enumerate(other):
            above = lengths[index + 1]
            lengths[index + 1] = previous + 1 if word == there else max(lengths[index + 1], lengths[index])
            previous = above
    return lengths[-1]
