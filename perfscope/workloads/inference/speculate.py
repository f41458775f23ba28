"""Speculative decoding: a small model drafts tokens, and the large model checks all of them in one call.

    python -m perfscope.workloads.inference.speculate
    python -m perfscope.workloads.inference.speculate --defect accept

Both write the text that the large model writes alone. ``--steps`` is the number of rounds, ``--seq`` the length of the
prompt.

Shapes: one row, L positions of a prompt, G drafted tokens, C = G + 1 checked positions, T positions of the text.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from perfscope.workloads.data import batches
from perfscope.workloads.inference.model import SIZES, Decoder, build
from perfscope.workloads.options import Options, options_of, parser_of

DEFECTS = {"accept": "compare drafted and checked tokens on the host, one by one"}
DRAFTED = 4
"""Tokens that the small model drafts per round."""


class Pair(nn.Module):
    """A large model and a small one, which has its first layer."""

    def __init__(self, options: Options, length: int) -> None:
        super().__init__()
        self.large, self.small = build(options, length, batch=1), build(options, length, batch=1, layers=1)
        self.small.load_state_dict(self.large.state_dict(), strict=False)


def accepted_of(drafted_G: torch.Tensor, checked_C: torch.Tensor) -> torch.Tensor:
    """Number of drafted tokens before the first that the large model would not have written, on the device."""
    return (drafted_G == checked_C[:-1]).to(torch.int64).cumprod(0).sum(0, keepdim=True)


def accepted_on_host(drafted_G: torch.Tensor, checked_C: torch.Tensor) -> torch.Tensor:
    """The same, read token by token."""
    count = 0
    while count < DRAFTED and drafted_G[count].item() == checked_C[count].item():  # defect: host_sync: waits per token
        count += 1
    return torch.tensor([count], device=drafted_G.device)


def likeliest(model: Decoder, tokens_1L: torch.Tensor, first_1: torch.Tensor) -> torch.Tensor:
    """The likeliest token after each position: tokens_L."""
    return model(tokens_1L, first_1)[0].argmax(-1)


def speculate(options: Options) -> list[int]:
    """Writes text for ``options.steps`` rounds; prints and returns it."""
    length = options.size.seq + (DRAFTED + 1) * (options.steps + 1)
    pair = Pair(options, length).eval()
    prompt_1L = next(iter(batches(options)))[:1, :-1]
    accept = accepted_on_host if "accept" in options.defects else accepted_of
    text_T = torch.full((length,), -1, device=options.device)
    places_C = torch.arange(DRAFTED + 1, device=options.device)
    with torch.inference_mode():
        first_1 = torch.zeros(1, dtype=torch.int64, device=options.device)
        likeliest(pair.small, prompt_1L, first_1)
        last_1 = likeliest(pair.large, prompt_1L, first_1)[-1:]
        end_1 = first_1 + prompt_1L.shape[1]  # the position of the last token, which no model has read
        text_T[end_1] = last_1
        for _ in range(options.steps):
            tokens = [last_1]
            for place in range(DRAFTED):
                tokens.append(likeliest(pair.small, tokens[-1][None], end_1 + place))
            likeliest(pair.small, tokens[-1][None], end_1 + DRAFTED)  # its cache must have the last draft, too
            checked_C = likeliest(pair.large, torch.cat(tokens)[None], end_1)
            accepted_1 = accept(torch.cat(tokens[1:]), checked_C)
            text_T[end_1 + 1 + places_C] = checked_C  # the next round writes over those that were not accepted
            last_1 = checked_C[accepted_1]
            end_1 = end_1 + accepted_1 + 1
        text: list[int] = text_T[prompt_1L.shape[1] : end_1.item() + 1].tolist()
    print(*text)
    return text


def parsed(argv: Sequence[str] | None = None) -> Options:
    """Options from the command line."""
    return options_of(parser_of(__doc__ or "", ("static",), SIZES, DEFECTS).parse_args(argv), SIZES)


if __name__ == "__main__":
    speculate(parsed())
