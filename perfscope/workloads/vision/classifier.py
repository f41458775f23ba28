"""Training of a vision transformer (ViT): patches of 16 x 16 pixels, blocks of `attention`, the mean of all patches.

    python -m perfscope.workloads.vision.classifier
    python -m perfscope.workloads.vision.classifier --defect augment
    python -m perfscope.workloads.vision.classifier --size gpu --defect accuracy

``--seq`` is the number of patches of a picture, a square number, ``--vocab`` the number of classes. All defects see the
same pictures.

Shapes: B pictures, C colours, R pixels of a side, L patches, D features, V classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perfscope.workloads.attention import Block as AttentionBlock
from perfscope.workloads.options import Options, Size, options_of, parser_of
from perfscope.workloads.training import report
from perfscope.workloads.vision.pictures import (
    CHANNELS,
    SIDE,
    augmented,
    crops,
    positions,
    resized,
    side_of,
    stored,
)

SIZES = {
    "tiny": Size(batch=4, seq=4, dim=64, heads=2, layers=1, vocab=8),
    "cpu": Size(batch=32, seq=36, dim=64, heads=4, layers=2, vocab=16),
    "gpu": Size(batch=256, seq=196, dim=768, heads=12, layers=12, vocab=1000),
}
DEFECTS = {
    "augment": "crop, resize, normalise and mirror picture by picture in every step",
    "accuracy": "read the number of right answers in every step",
    "patches": "cut pictures into patches by unfold and a copy, in place of a convolution",
}


def all_attention(q_BHLK: torch.Tensor, k_BHMK: torch.Tensor, v_BHMK: torch.Tensor) -> torch.Tensor:
    """Attention in which every patch sees all patches: o_BHLK."""
    return F.scaled_dot_product_attention(q_BHLK, k_BHMK, v_BHMK)


class Classifier(nn.Module):
    """Patches, blocks and a linear head: picture_BCRR -> logits_BV."""

    def __init__(self, size: Size, defects: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self.unfolds = "patches" in defects
        self.patch = nn.Conv2d(CHANNELS, size.dim, SIDE, stride=SIDE)
        self.place_LD = nn.Parameter(0.02 * torch.randn(size.seq, size.dim))
        self.blocks = nn.ModuleList(AttentionBlock(size, "sdpa") for _ in range(size.layers))
        for block in self.blocks:
            block.attention.attend = all_attention
        self.norm, self.head = nn.LayerNorm(size.dim), nn.Linear(size.dim, size.vocab)

    def forward(self, picture_BCRR: torch.Tensor) -> torch.Tensor:
        """logits_BV."""
        x_BLD = self.patches(picture_BCRR) + self.place_LD
        for block in self.blocks:
            x_BLD = block(x_BLD)
        return self.head(self.norm(x_BLD).mean(1))

    def patches(self, picture_BCRR: torch.Tensor) -> torch.Tensor:
        """The features of each patch: x_BLD."""
        if self.unfolds:
            patch_BPL = F.unfold(picture_BCRR, SIDE, stride=SIDE)  # defect: none: a copy of all pixels
            return F.linear(patch_BPL.transpose(1, 2), self.patch.weight.flatten(1), self.patch.bias)
        return self.patch(picture_BCRR).flatten(2).transpose(1, 2)


def batches(options: Options) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pictures and classes of each step, on the device: picture_BCRR, class_B."""
    size, device, dtype = options.size, options.device, getattr(torch, options.dtype)
    picture_BSSC, label_B = stored(size.batch, size.seq, size.vocab, options.seed)
    side, normal_BRRC = side_of(size.seq), torch.from_numpy(np.stack([resized(one) for one in picture_BSSC]))
    normal_BRRC = normal_BRRC.to(device, dtype)
    class_B, batch_B11 = torch.from_numpy(label_B).to(device), torch.arange(size.batch, device=device)[:, None, None]
    for crop_B3 in crops(size.batch, size.seq, options.steps, options.seed):
        if "augment" in options.defects:
            pairs = zip(picture_BSSC, crop_B3, strict=True)
            host_BCRR = np.stack([augmented(picture, crop, side) for picture, crop in pairs])
            yield torch.from_numpy(host_BCRR).to(device, dtype), class_B
            continue
        row_BR, column_BR = (torch.from_numpy(place).to(device) for place in positions(crop_B3, side))
        yield normal_BRRC[batch_B11, row_BR[:, :, None], column_BR[:, None, :]].permute(0, 3, 1, 2), class_B


def build(options: Options) -> Classifier:
    """The model on its device."""
    torch.manual_seed(options.seed)
    model = Classifier(options.size, options.defects)
    model.to(device=options.device, dtype=getattr(torch, options.dtype))
    return model


def train(options: Options) -> list[float]:
    """Trains ``options.steps`` steps, prints the loss of each and returns them."""
    torch.set_float32_matmul_precision("high")
    model = build(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    losses, right = [], 0
    for picture_BCRR, class_B in batches(options):
        logits_BV = model(picture_BCRR)
        loss = F.cross_entropy(logits_BV.float(), class_B)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "accuracy" in options.defects:
            right += int((logits_BV.argmax(-1) == class_B).sum().item())  # defect: host_sync: waits for the step
        losses.append(loss.detach())
    if "accuracy" in options.defects:
        print(f"accuracy {right / options.steps / options.size.batch:.3f}")
    return report(losses)


def parsed(argv: Sequence[str] | None = None) -> Options:
    """Options from the command line."""
    return options_of(parser_of(__doc__ or "", ("vit",), SIZES, DEFECTS).parse_args(argv), SIZES)


if __name__ == "__main__":
    train(parsed())
