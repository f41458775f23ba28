"""Inference of a decoder: one call that reads the prompts, then one call per token, with a cache of keys and values.

    python -m perfscope.workloads.decode --variant static
    python -m perfscope.workloads.decode --variant growing --size gpu

Variants of the cache: ``static`` (full length, written in place), ``growing`` (joined with each part), ``masked``
(written through a mask), ``beams`` (rows picked for each token), ``paged`` (pages of ``PAGE`` positions, joined for
each token, as a program without a paged kernel does), ``pages`` (read where they are). All write the same tokens.
``--steps`` is the number of tokens, ``--seq`` the length of the prompts.

Shapes: B batch, L new positions, T positions of the cache, D model features, H heads, K features of a head, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from perfscope.workloads.data import batches
from perfscope.workloads.kernels.paged import paged_attention
from perfscope.workloads.options import Options, Size, options_of, parser_of

VARIANTS = ("static", "growing", "masked", "beams", "paged", "pages")
PAGED = ("paged", "pages")
PAGE = 16
"""Positions of a page."""
SIZES = {
    "tiny": Size(batch=8, seq=64, dim=64, heads=4, layers=2, vocab=64),
    "cpu": Size(batch=16, seq=256, dim=256, heads=8, layers=2),
    "gpu": Size(batch=64, seq=2048, dim=4096, heads=32, layers=8, vocab=32_000),
}


class Cache(nn.Module):
    """Keys and values of a layer for ``length`` positions, of which ``filled`` are written."""

    def __init__(self, size: Size, variant: str, length: int) -> None:
        super().__init__()
        self.variant, self.filled, self.length = variant, 0, length
        shape = (2, size.batch, size.heads, 0 if variant in ("growing", *PAGED) else length, size.dim // size.heads)
        self.kv_2BHTK: torch.Tensor
        self.register_buffer("kv_2BHTK", torch.zeros(shape))
        if variant in PAGED:
            self.pages = Pages(size, length)

    def extended(self, new_2BHLK: torch.Tensor) -> torch.Tensor:
        """Takes in new positions and returns all that are filled: kv_2BHTK."""
        first, self.filled = self.filled, self.filled + new_2BHLK.shape[3]
        if self.variant in PAGED:
            return self.pages.extended(first, new_2BHLK)
        if self.variant == "growing":
            self.kv_2BHTK = torch.cat((self.kv_2BHTK, new_2BHLK), dim=3)  # defect: data_movement: copies all positions
        elif self.variant == "masked" and new_2BHLK.shape[3] == 1:
            here_T = torch.arange(self.length, device=new_2BHLK.device) == first
            self.kv_2BHTK = torch.where(here_T[:, None], new_2BHLK, self.kv_2BHTK)  # defect: data_movement: all of it
        else:
            self.kv_2BHTK[:, :, :, first : self.filled] = new_2BHLK
        return self.kv_2BHTK[:, :, :, : self.filled]

    def attend(self, q_BHK: torch.Tensor, new_2BHLK: torch.Tensor) -> torch.Tensor:
        """Takes in one position and returns its attention over all pages, read where they are: o_BHK."""
        self.filled = self.pages.write(self.filled, new_2BHLK)
        table_BM = self.pages.table_BM[:, : -(-self.filled // PAGE)]
        filled_B = torch.full((len(q_BHK),), self.filled, dtype=torch.int32, device=q_BHK.device)
        return paged_attention(q_BHK, *self.pages.pages_2NPHK, table_BM, filled_B)

    def pick(self, rows_B: torch.Tensor) -> None:
        """Goes on with these rows, as beam search does."""
        self.kv_2BHTK = self.kv_2BHTK.index_select(1, rows_B)  # defect: data_movement: copies the rows as a whole


class Pages(nn.Module):
    """Keys and values in pages, and the numbers of each row's pages in a table."""

    def __init__(self, size: Size, length: int) -> None:
        super().__init__()
        blocks = -(-length // PAGE)
        self.pages_2NPHK: torch.Tensor
        self.table_BM: torch.Tensor
        shape = (2, size.batch * blocks, PAGE, size.heads, size.dim // size.heads)
        self.register_buffer("pages_2NPHK", torch.zeros(shape))
        self.register_buffer("table_BM", torch.arange(size.batch * blocks).flip(0).view(size.batch, blocks))

    def extended(self, first: int, new_2BHLK: torch.Tensor) -> torch.Tensor:
        """Takes in new positions, the first at ``first``, and returns all that are filled: kv_2BHTK."""
        filled = self.write(first, new_2BHLK)
        used_BM = self.table_BM[:, : -(-filled // PAGE)]
        kv_2BTHK = self.pages_2NPHK[:, used_BM].flatten(2, 3)  # defect: data_movement: copies all pages
        return kv_2BTHK[:, :, :filled].transpose(2, 3)

    def write(self, first: int, new_2BHLK: torch.Tensor) -> int:
        """Takes in new positions; the number of all that are filled."""
        filled: int = first + new_2BHLK.shape[3]
        place_L = torch.arange(first, filled, device=new_2BHLK.device)
        page_BL, within_L = self.table_BM[:, place_L // PAGE], place_L % PAGE
        self.pages_2NPHK[:, page_BL, within_L] = new_2BHLK.transpose(2, 3)
        return filled


class Block(nn.Module):
    """Attention over the cache and a perceptron: x_BLD -> x_BLD."""

    def __init__(self, size: Size, variant: str, length: int) -> None:
        super().__init__()
        self.heads = size.heads
        self.cache = Cache(size, variant, length)
        self.norm1, self.norm2 = nn.LayerNorm(size.dim), nn.LayerNorm(size.dim)
        self.qkv, self.out = nn.Linear(size.dim, 3 * size.dim, bias=False), nn.Linear(size.dim, size.dim, bias=False)
        self.up, self.down = nn.Linear(size.dim, 4 * size.dim), nn.Linear(4 * size.dim, size.dim)

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
        """x_BLD."""
        qkv_3BHLK = self.qkv(self.norm1(x_BLD)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.cache.variant == "pages" and x_BLD.shape[1] == 1:
            o_BHLK = self.cache.attend(qkv_3BHLK[0, :, :, 0], qkv_3BHLK[1:]).unsqueeze(2)
        else:
            k_BHTK, v_BHTK = self.cache.extended(qkv_3BHLK[1:]).unbind(0)
            o_BHLK = F.scaled_dot_product_attention(qkv_3BHLK[0], k_BHTK, v_BHTK, is_causal=x_BLD.shape[1] > 1)
        x_BLD = x_BLD + self.out(o_BHLK.transpose(1, 2).flatten(2))
        return x_BLD + self.down(F.gelu(self.up(self.norm2(x_BLD))))


class Decoder(nn.Module):
    """Embedding, blocks and a head: tokens_BL -> logits_BV of the last position."""

    def __init__(self, size: Size, variant: str, length: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(size.vocab, size.dim), nn.Linear(size.dim, size.vocab, bias=False)
        self.blocks = nn.ModuleList(Block(size, variant, length) for _ in range(size.layers))

    def forward(self, tokens_BL: torch.Tensor) -> torch.Tensor:
        """logits_BV."""
        x_BLD = self.embedding(tokens_BL)
        for block in self.blocks:
            x_BLD = block(x_BLD)
        return self.head(x_BLD[:, -1])

    def pick(self, rows_B: torch.Tensor) -> None:
        """Goes on with these rows in all caches."""
        for block in self.blocks:
            block.cache.pick(rows_B)


def decode(options: Options) -> list[int]:
    """Writes ``options.steps`` tokens after the prompts, each the likeliest; prints and returns the first text's."""
    size = options.size
    torch.manual_seed(options.seed)
    model = Decoder(size, options.variant, size.seq + options.steps).eval()
    model.to(device=options.device, dtype=getattr(torch, options.dtype))
    tokens_BL = next(iter(batches(options)))[:, :-1]
    rows_B = torch.arange(size.batch, device=options.device)  # the beams that go on: here each its own
    written = []
    with torch.inference_mode():
        for _ in range(options.steps):
            token_B = model(tokens_BL).argmax(-1)
            if options.variant == "beams":
                model.pick(rows_B)
            tokens_BL = token_B[:, None]
            written.append(token_B[0])
    tokens: list[int] = torch.stack(written).tolist()
    print(*tokens)
    return tokens


def parsed(argv: Sequence[str] | None = None) -> Options:
    """Options from the command line."""
    return options_of(parser_of(__doc__ or "", VARIANTS, SIZES, {}).parse_args(argv), SIZES)


if __name__ == "__main__":
    decode(parsed())
