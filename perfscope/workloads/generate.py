"""Writes tokens one after the other: each step is a call of the model, without training.

    python -m perfscope.workloads.generate --defect item

Shapes: B batch, L sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from perfscope.workloads.data import batches
from perfscope.workloads.options import Options, options_of, parser_of
from perfscope.workloads.ssm import SIZES, Block
from perfscope.workloads.training import build

VARIANTS = ("parallel", "scan")
DEFECTS = {"item": "read every token, to see whether it ends the text"}
END = -1
"""The token that ends a text: it never occurs, so that all variants write as many tokens."""


def generate(options: Options) -> list[int]:
    """Writes ``options.steps`` tokens after a prompt, each the likeliest, prints and returns the first text's."""
    model = build(Block, options).eval()
    tokens_BL = next(iter(batches(options)))[:, :-1]
    written = []
    with torch.no_grad():
        for _ in range(options.steps):
            token_B = model(tokens_BL)[:, -1].argmax(-1)
            tokens_BL = torch.cat((tokens_BL[:, 1:], token_B[:, None]), dim=1)
            written.append(token_B[0])
            if "item" in options.defects and token_B[0].item() == END:  # defect: host_sync: waits for every token
                break
    tokens: list[int] = torch.stack(written).tolist()
    print(*tokens)
    return tokens


def parsed(argv: Sequence[str] | None = None) -> Options:
    """Options from the command line."""
    return options_of(parser_of(__doc__ or "", VARIANTS, SIZES, DEFECTS).parse_args(argv), SIZES)


if __name__ == "__main__":
    generate(parsed())
