"""Synthetic text: sequences whose next token follows from the last one, tokenised by slow, honest Python.

Shapes: B sequences a batch, L tokens a sequence. A batch is tokens_BM with M = L + 1: input and target overlap.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Dataset

from perfscope.workloads.options import Options

WINDOWS = 64
"""Sequences of a document. Tokenising all of it to use one is a usual mistake, and makes ``loader`` slow."""


class Text(Dataset):
    """Sequence ``index`` is a window of a document, an affine walk over the vocabulary."""

    def __init__(self, sequences: int, length: int, vocab: int, seed: int) -> None:
        self.sequences, self.length, self.vocab, self.seed = sequences, length, vocab, seed

    def __len__(self) -> int:
        """Number of sequences."""
        return self.sequences

    def __getitem__(self, index: int) -> torch.Tensor:
        """tokens_M, int64."""
        token, tokens = (index * 7919 + self.seed) % self.vocab, []
        for _ in range(self.length * WINDOWS):
            tokens.append(token)
            token = (token * 5 + 3) % self.vocab
        first = index % WINDOWS
        return torch.tensor(tokens[first : first + self.length])


def batches(options: Options) -> Iterator[torch.Tensor]:
    """One tokens_BM a step, on the device. Every defect yields the same numbers."""
    size, cuda = options.size, options.device.startswith("cuda")
    text = Text(options.steps * size.batch, size.seq + 1, size.vocab, options.seed)
    if "loader" in options.defects:
        # One process that tokenises and trains in turns.
        for tokens_BM in DataLoader(text, batch_size=size.batch, num_workers=0):  # defect: input_stall
            yield tokens_BM.to(options.device)
        return
    prepared = list(DataLoader(text, batch_size=size.batch, pin_memory=cuda and "pageable" not in options.defects))
    for tokens_BM in prepared:
        if "pageable" in options.defects:
            yield tokens_BM.to(options.device)  # defect: pageable_copy: waits until it is staged
        else:
            yield tokens_BM.to(options.device, non_blocking=True)
