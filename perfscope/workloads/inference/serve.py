"""Requests that want texts of very different lengths, in a batch of fixed size.

    python -m perfscope.workloads.inference.serve --variant static
    python -m perfscope.workloads.inference.serve --variant continuous

Variants: ``continuous`` (a row whose text has ended is given to the next request), ``static`` (the batch waits until
its longest text has ended). Both write the same texts. ``--steps`` is the number of batches of requests, ``--seq`` the
length of a prompt and of the longest text.

Shapes: B rows, N rows of a call, L positions of a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from perfscope.workloads.inference.model import SIZES, Decoder, build
from perfscope.workloads.options import Options, options_of, parser_of

VARIANTS = ("continuous", "static")
PAD = 0
"""Token that fills rows whose text has ended; prompts and texts do not have it."""


def requests(options: Options) -> tuple[torch.Tensor, list[int]]:
    """Prompts of all requests, one per row, and the number of tokens that each wants: few want long texts."""
    size, generator = options.size, torch.Generator().manual_seed(options.seed)
    count = options.steps * size.batch
    prompts = torch.randint(1, size.vocab, (count, size.seq), generator=generator)
    wanted = size.seq * torch.rand(count, generator=generator) ** 3
    return prompts, [2 + int(tokens) for tokens in wanted.tolist()]


def likeliest(logits_NLV: torch.Tensor) -> torch.Tensor:
    """The likeliest next token of each row, except ``PAD``: tokens_N."""
    return logits_NLV[:, -1, PAD + 1 :].argmax(-1) + PAD + 1


class Rows:
    """The request of each row. Lengths of texts are on the host; no value is read from the device."""

    def __init__(self, options: Options, model: Decoder) -> None:
        size, device = options.size, options.device
        self.prompts, self.wanted = requests(options)
        self.prompts = self.prompts.to(device)
        self.model, self.queue = model, list(range(len(self.wanted)))
        self.request: list[int | None] = [None] * size.batch
        self.left = [0] * size.batch
        self.token_B = torch.full((size.batch,), PAD, device=device)
        self.first_B = torch.zeros(size.batch, dtype=torch.int64, device=device)
        self.pad_B = torch.full((size.batch,), PAD, device=device)
        self.texts: dict[int, list[torch.Tensor]] = {}

    def admit(self, rows: list[int]) -> None:
        """Reads the prompts of the next requests into these rows."""
        taken = self.queue[: len(rows)]
        self.queue, rows = self.queue[len(taken) :], rows[: len(taken)]
        for row, request in zip(rows, taken, strict=True):
            self.request[row], self.left[row] = request, self.wanted[request] - 1
        rows_N = torch.tensor(rows, device=self.token_B.device)
        prompts_NL = self.prompts[taken]
        token_N = likeliest(self.model(prompts_NL, torch.zeros_like(rows_N), rows_N))
        self.token_B = self.token_B.index_copy(0, rows_N, token_N)  # a new tensor: texts hold parts of the old one
        self.first_B[rows_N] = prompts_NL.shape[1]
        for number, request in enumerate(taken):
            self.texts[request] = [token_N[number]]

    def step(self) -> None:
        """Writes a token in every row."""
        live = [row for row, left in enumerate(self.left) if left]
        busy_B = torch.tensor([left > 0 for left in self.left]).to(self.token_B.device, non_blocking=True)
        tokens_B1 = torch.where(busy_B, self.token_B, self.pad_B)[:, None]  # defect: batch_bubble: rows without a text
        self.token_B = likeliest(self.model(tokens_B1, self.first_B))
        self.first_B = self.first_B + busy_B
        for row in live:
            request = self.request[row]
            assert request is not None
            self.left[row] -= 1
            self.texts[request].append(self.token_B[row])

    def idle(self) -> list[int]:
        """Rows whose text has ended."""
        return [row for row, left in enumerate(self.left) if not left]


def serve(options: Options) -> list[list[int]]:
    """Writes the text of every request; prints their number of tokens and returns the texts."""
    length = 2 * options.size.seq + 2
    with torch.inference_mode():
        rows = Rows(options, build(options, length))
        while rows.queue or any(rows.left):
            idle = rows.idle()
            if rows.queue and idle and (options.variant == "continuous" or len(idle) == options.size.batch):
                rows.admit(idle)
            rows.step()
        texts: list[list[int]] = [torch.stack(rows.texts[number]).tolist() for number in sorted(rows.texts)]
    print(f"{len(texts)} texts, {sum(map(len, texts))} tokens")
    return texts


def parsed(argv: Sequence[str] | None = None) -> Options:
    """Options from the command line."""
    return options_of(parser_of(__doc__ or "", VARIANTS, SIZES, {}).parse_args(argv), SIZES)


if __name__ == "__main__":
    serve(parsed())
