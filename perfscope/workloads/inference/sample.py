"""Sampling with a temperature and a nucleus (top-p): one call of the model per token.

    python -m perfscope.workloads.inference.sample
    python -m perfscope.workloads.inference.sample --defect rows

Both draw the same tokens. ``--steps`` is the number of tokens, ``--seq`` the length of the prompts.

Shapes: B batch, L positions of a call, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from perfscope.workloads.data import batches
from perfscope.workloads.inference.model import SIZES, build
from perfscope.workloads.options import Options, options_of, parser_of

DEFECTS = {"rows": "cut and draw row by row, and read each token"}
TEMPERATURE, NUCLEUS = 0.8, 0.9


def drawn(logits_BV: torch.Tensor, chance_B1: torch.Tensor) -> torch.Tensor:
    """Tokens drawn from the likeliest ones that together have ``NUCLEUS`` of the probability: tokens_B."""
    sorted_BV, order_BV = (logits_BV / TEMPERATURE).float().softmax(-1).sort(-1, descending=True)
    before_BV = sorted_BV.cumsum(-1) - sorted_BV
    kept_BV = sorted_BV.masked_fill(before_BV > NUCLEUS, 0).cumsum(-1)
    place_B1 = torch.searchsorted(kept_BV, chance_B1 * kept_BV[:, -1:])
    return order_BV.gather(1, place_B1)[:, 0]


def drawn_by_row(logits_BV: torch.Tensor, chance_B1: torch.Tensor) -> torch.Tensor:
    """The same, as a loop over the rows: tokens_B."""
    tokens = []
    for logits_V, chance_1 in zip(logits_BV, chance_B1, strict=True):
        sorted_V, order_V = (logits_V / TEMPERATURE).float().softmax(-1).sort(-1, descending=True)
        before_V = sorted_V.cumsum(-1) - sorted_V
        kept_V = sorted_V.masked_fill(before_V > NUCLEUS, 0).cumsum(-1)
        place_1 = torch.searchsorted(kept_V, chance_1 * kept_V[-1:])
        tokens.append(order_V[place_1].item())  # defect: host_sync: waits for every row of every token
    return torch.tensor(tokens, device=logits_BV.device)


def sample(options: Options) -> list[list[int]]:
    """Draws ``options.steps`` tokens after the prompts; prints the first text and returns all."""
    size = options.size
    model = build(options, size.seq + options.steps)
    tokens_BL = next(iter(batches(options)))[:, :-1]
    first_B = torch.zeros(size.batch, dtype=torch.int64, device=options.device)
    generator = torch.Generator(options.device).manual_seed(options.seed)
    draw = drawn_by_row if "rows" in options.defects else drawn
    written = []
    with torch.inference_mode():
        for _ in range(options.steps):
            chance_B1 = torch.rand(size.batch, 1, generator=generator, device=options.device)
            token_B = draw(model(tokens_BL, first_B)[:, -1], chance_B1)
            first_B = first_B + tokens_BL.shape[1]
            tokens_BL = token_B[:, None]
            written.append(token_B)
        texts: list[list[int]] = torch.stack(written, 1).tolist()
    print(*texts[0])
    return texts


def parsed(argv: Sequence[str] | None = None) -> Options:
    """Options from the command line."""
    return options_of(parser_of(__doc__ or "", ("static",), SIZES, DEFECTS).parse_args(argv), SIZES)


if __name__ == "__main__":
    sample(parsed())
