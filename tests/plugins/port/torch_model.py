"""A small Llama in PyTorch with changes that can be planted: the twin of ``jax_model``."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

B, T, D, H, KV, L, V, FF = 4, 64, 64, 4, 2, 2, 160, 192
HD = D // H


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))

    def forward(self, x: Any) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class Attention(nn.Module):
    def __init__(self, changes: frozenset[str]) -> None:
        super().__init__()
        self.changes = changes
        self.q_proj, self.o_proj = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(D, KV * HD, bias=False) for _ in range(2))

    def forward(self, x: Any) -> Any:
        length = x.shape[1]
        q = self.q_proj(x).view(B, length, H, HD).transpose(1, 2)
        k = self.k_proj(x).view(B, length, KV, HD).transpose(1, 2)
        v = self.v_proj(x).view(B, length, KV, HD).transpose(1, 2)
        if "fused" in self.changes:
            o = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return self.o_proj(o.transpose(1, 2).reshape(B, length, D))
        groups = H // KV
        if "repeat" in self.changes:
            k = k.repeat_interleave(16, 1).unflatten(1, (KV, 16))[:, :, 0]  # planted: repeat
        q = q.reshape(B, KV, groups * length, HD)
        scores = q @ k.transpose(-2, -1) / HD**0.5
        mask = torch.ones(length, length, dtype=torch.bool).triu(1).repeat(groups, 1)
        weights = torch.softmax(scores.masked_fill(mask, float("-inf")), -1)
        o = (weights @ v).reshape(B, H, length, HD)
        return self.o_proj(o.transpose(1, 2).reshape(B, length, D))


class MLP(nn.Module):
    def __init__(self, changes: frozenset[str]) -> None:
        super().__init__()
        self.changes = changes
        self.gate_proj, self.up_proj = nn.Linear(D, FF, bias=False), nn.Linear(D, FF, bias=False)
        self.down_proj = nn.Linear(FF, D, bias=False)

    def forward(self, x: Any) -> Any:
        h = functional.silu(self.gate_proj(x)) * self.up_proj(x)
        if "copy" in self.changes:
            h = h.transpose(1, 2).contiguous().transpose(1, 2).contiguous()  # planted: copy
        if "wide" in self.changes:
            return functional.linear(h.float(), self.down_proj.weight.float()).to(x.dtype)  # planted: wide
        return self.down_proj(h)


class Layer(nn.Module):
    def __init__(self, changes: frozenset[str]) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(), RMSNorm()
        self.self_attn, self.mlp = Attention(changes), MLP(changes)

    def forward(self, x: Any) -> Any:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, changes: frozenset[str], layers: int) -> None:
        super().__init__()
        self.changes = changes
        self.embed_tokens = nn.Embedding(V, D)
        self.layers = nn.ModuleList([Layer(changes) for _ in range(layers)])
        self.norm = RMSNorm()
        self.lm_head = nn.Linear(D, V, bias=False)

    def forward(self, ids: Any) -> Any:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            again = "checkpoint" in self.changes
            x = checkpoint(layer, x, use_reentrant=False) if again else layer(x)  # planted: checkpoint
        return self.lm_head(self.norm(x))


def step_of(*changes: str, layers: int = L, dtype: Any = torch.float32) -> Any:
    """A training step without arguments, already run once."""
    torch.manual_seed(0)
    planted = frozenset(changes)
    model = Llama(planted, layers).to(dtype)
    fused = {"fused": True} if "loop" not in planted else {"foreach": False}
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3, **fused)
    ids = torch.arange(B * (T + 1)).reshape(B, T + 1) * 7 % V

    def step() -> None:
        logits = model(ids[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        if "item" in planted:
            assert loss.item() > 0  # planted: item
        adam.step()  # planted: loop
        adam.zero_grad()

    step()
    return step
