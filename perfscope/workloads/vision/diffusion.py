"""A diffusion transformer (DiT) that draws pictures after a text, with classifier-free guidance.

    python -m perfscope.workloads.vision.diffusion
    python -m perfscope.workloads.vision.diffusion --defect cast
    python -m perfscope.workloads.vision.diffusion --defect text --defect two-calls

``--steps`` is the number of steps of the sampler, ``--seq`` the number of patches of a picture, a square number. All
defects draw the same pictures.

Shapes: B pictures, N rows of a call (2 B: with the text and without), L patches, M tokens of the text, D features, P
numbers of a patch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from perfscope.workloads.options import Options, Size, options_of, parser_of

SIZES = {
    "tiny": Size(batch=2, seq=16, dim=64, heads=2, layers=2, vocab=64),
    "cpu": Size(batch=2, seq=64, dim=256, heads=4, layers=3),
    "gpu": Size(batch=16, seq=1024, dim=1152, heads=16, layers=28, vocab=32_000),
}
DEFECTS = {
    "cast": "keep the weights in bfloat16 and convert them in each call",
    "text": "compute the embedding of the text again in each step",
    "two-calls": "call the model twice per step, with the text and without, in place of once with both",
    "host-time": "make the time of each step on the host and send it to the device",
}
PATCH, TOKENS, GUIDANCE = 16, 16, 4.0


class Linear(nn.Linear):
    """A linear layer that computes in the dtype of its input, whatever the dtype of its weight."""

    def forward(self, x_D: torch.Tensor) -> torch.Tensor:
        """y_G."""
        if x_D.dtype == self.weight.dtype:
            return super().forward(x_D)
        return F.linear(x_D, self.weight.to(x_D.dtype), self.bias.to(x_D.dtype))  # defect: constant_work: all weights


class Block(nn.Module):
    """Attention between patches and to the text, and a perceptron, scaled and shifted by the time: x_NLD -> x_NLD."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        dim, self.heads = size.dim, size.heads
        self.norm = nn.LayerNorm(dim, elementwise_affine=False)
        self.time = Linear(dim, 4 * dim)
        self.qkv, self.out, self.text = Linear(dim, 3 * dim), Linear(dim, dim), Linear(dim, 2 * dim)
        self.up, self.down = Linear(dim, 4 * dim), Linear(4 * dim, dim)

    def forward(self, x_NLD: torch.Tensor, time_ND: torch.Tensor, text_NMD: torch.Tensor) -> torch.Tensor:
        """x_NLD."""
        scale1, shift1, scale2, shift2 = self.time(time_ND)[:, None].chunk(4, -1)
        q, k, v = self.qkv(self.norm(x_NLD) * (1 + scale1) + shift1).chunk(3, -1)
        more_k, more_v = self.text(text_NMD).chunk(2, -1)
        parts = (q, torch.cat((k, more_k), 1), torch.cat((v, more_v), 1))
        o = F.scaled_dot_product_attention(*(part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts))
        x_NLD = x_NLD + self.out(o.transpose(1, 2).flatten(2))
        return x_NLD + self.down(F.gelu(self.up(self.norm(x_NLD) * (1 + scale2) + shift2)))


class Denoiser(nn.Module):
    """Predicts the noise in patches: x_NLP -> noise_NLP."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.enter, self.leave = Linear(PATCH, size.dim), Linear(size.dim, PATCH)
        self.place_LD = nn.Parameter(0.02 * torch.randn(size.seq, size.dim))
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.dim = size.dim

    def forward(self, x_NLP: torch.Tensor, time_N: torch.Tensor, text_NMD: torch.Tensor) -> torch.Tensor:
        """noise_NLP."""
        rate_D = torch.logspace(0, -4, self.dim // 2, device=time_N.device)
        angle_ND = time_N[:, None] * rate_D
        time_ND = torch.cat((angle_ND.cos(), angle_ND.sin()), -1).to(x_NLP.dtype)
        x_NLD = self.enter(x_NLP) + self.place_LD.to(x_NLP.dtype)
        for block in self.blocks:
            x_NLD = block(x_NLD, time_ND, text_NMD)
        return self.leave(x_NLD)


class Encoder(nn.Module):
    """Embeds a text: tokens_BM -> text_BMD."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocab, size.dim)
        layer = nn.TransformerEncoderLayer(size.dim, size.heads, 4 * size.dim, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens_BM: torch.Tensor) -> torch.Tensor:
        """text_BMD."""
        return self.layers(self.embedding(tokens_BM))


def guided(
    model: Denoiser, x_BLP: torch.Tensor, time_1: torch.Tensor, text_NMD: torch.Tensor, *, twice: bool
) -> torch.Tensor:
    """The noise with guidance: noise_BLP. The first half of ``text_NMD`` is the text, the other is without one."""
    count = len(x_BLP)
    if twice:
        with_BLP = model(x_BLP, time_1.expand(count), text_NMD[:count])
        without_BLP = model(x_BLP, time_1.expand(count), text_NMD[count:])  # defect: none: reads all weights again
    else:
        both_NLP = model(torch.cat((x_BLP, x_BLP)), time_1.expand(2 * count), text_NMD)
        with_BLP, without_BLP = both_NLP.chunk(2)
    return without_BLP + GUIDANCE * (with_BLP - without_BLP)


def sample(options: Options) -> list[float]:
    """Draws pictures in ``options.steps`` steps of DDIM; prints and returns numbers of the first."""
    size, device, dtype = options.size, options.device, getattr(torch, options.dtype)
    torch.manual_seed(options.seed)
    encoder, model = Encoder(size).to(device, dtype).eval(), Denoiser(size).to(device).bfloat16().eval()
    if "cast" not in options.defects:
        model.to(dtype)
    tokens_NM = torch.randint(1, size.vocab, (2 * size.batch, TOKENS), device=device)
    tokens_NM[size.batch :] = 0
    x_BLP = torch.randn(size.batch, size.seq, PATCH, device=device, dtype=dtype)
    kept_T = torch.linspace(0.99, 0.01, options.steps + 1, device=device).flip(0)  # share of the picture, rising
    with torch.inference_mode():
        text_NMD = encoder(tokens_NM)
        for step in range(options.steps):
            if "text" in options.defects:
                text_NMD = encoder(tokens_NM)  # defect: none: the same in each step
            time_1 = 1000 * (1 - kept_T[step : step + 1])
            if "host-time" in options.defects:
                time = 1000 * (0.99 - 0.98 * step / options.steps)
                time_1 = torch.tensor([time], device=device)  # defect: pageable_copy: waits for the device
            noise_BLP = guided(model, x_BLP, time_1, text_NMD, twice="two-calls" in options.defects)
            now, later = kept_T[step].to(dtype), kept_T[step + 1].to(dtype)
            clean_BLP = (x_BLP - (1 - now).sqrt() * noise_BLP) / now.sqrt()
            x_BLP = later.sqrt() * clean_BLP + (1 - later).sqrt() * noise_BLP
    numbers: list[float] = x_BLP[0, 0, :4].float().tolist()
    print(*(f"{number:.4f}" for number in numbers))
    return numbers


def parsed(argv: Sequence[str] | None = None) -> Options:
    """Options from the command line."""
    return options_of(parser_of(__doc__ or "", ("dit",), SIZES, DEFECTS).parse_args(argv), SIZES)


if __name__ == "__main__":
    sample(parsed())
