"""How many of the token ids of a batch are padding, read when an embedding looks them up.

The values are read in the structure pass alone, which is never timed; counts are kept, and no value.
"""

from __future__ import annotations

from typing import Any

import torch

from perfscope.model.op_graph import TokenBatch

LEAST_LENGTH = 8
"""Shorter rows are features or single tokens."""
MOST_OUTSIDE = 0.01
"""Largest share of the ids that may have the padding's value elsewhere: a common word has it anywhere."""
END = 1
"""Ids of a run that may be the end of the text: many tokenizers pad with the id of the end."""


def counted(op: int, ids: Any, padding: Any) -> TokenBatch | None:
    """Count the ids of a batch, rows x length, that embedding ``op`` looks up.

    ``padding``: the id that the program declares for padding, negative for none.
    ``None``: not a batch of rows with known values. Without a declared id, padding is a run of one value at the end
    (or the begin) of the rows that has different lengths and a value that is rare elsewhere.
    """
    plain = type(ids) is torch.Tensor and ids.device.type != "meta" and ids.dim() == 2
    if not plain or ids.shape[0] < 2 or ids.shape[1] < LEAST_LENGTH:
        return None
    rows, length = (int(size) for size in ids.shape)
    declared = int(padding) if isinstance(padding, int) and padding >= 0 else None
    runs = max((_runs(side, declared) for side in (ids, ids.flip(1))), key=lambda run: int(run.sum()))
    empty = int(runs.sum())
    longest = length - int(runs.min())
    return TokenBatch(op=op, rows=rows, length=length, filled=rows * length - empty, longest=longest)


def _runs(ids: Any, declared: int | None) -> Any:
    """Length of the padding at the end of each row."""
    value = ids[:, -1].mode().values if declared is None else declared
    same = ids == value
    runs = same.flip(1).to(torch.int64).cumprod(1).sum(1)
    if declared is not None:
        return runs
    elsewhere = int(same.sum() - runs.sum())
    runs = runs * (runs < ids.shape[1])  # a row of one value is an empty text, which guidance of diffusion needs
    varies = int(runs.max()) > int(runs.min())
    runs = (runs - END).clamp(min=0)
    return runs if varies and elsewhere <= MOST_OUTSIDE * ids.numel() else runs * 0
