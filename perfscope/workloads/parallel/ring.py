"""Ring attention (Liu et al. 2023): keys and values of all processes pass by while each computes on those it has.

Scores are never in memory: parts are computed by `flash_attention` and merged by the logarithms of their weights' sums.
The backward sends keys and values around again, and their gradients with them.

Shapes: B batch, H heads, L positions of a process, K features of a head. A process has two pieces of every sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from perfscope.workloads.kernels.flash import flash_attention, flash_attention_backward

Pieces = Sequence[tuple[int, int]]
"""The numbers of the pieces of each process, by rank."""


class Passing:
    """A tensor on its way to the next process, and that of the previous one on its way here."""

    def __init__(self, x: torch.Tensor, group: dist.ProcessGroup) -> None:
        rank, count = group.rank(), group.size()
        self.sent, self.received, self.works = (
            x.contiguous(),
            torch.empty_like(x, memory_format=torch.contiguous_format),
            [],
        )
        if count == 1:
            self.received = self.sent
            return
        pair = (dist.isend, self.sent, (rank + 1) % count), (dist.irecv, self.received, (rank - 1) % count)
        self.works = dist.batch_isend_irecv([dist.P2POp(how, what, whom, group) for how, what, whom in pair])

    def wait(self) -> torch.Tensor:
        """The tensor of the previous process."""
        for work in self.works:
            work.wait()
        return self.received


def _pairs(mine: tuple[int, int], others: tuple[int, int]) -> Iterator[tuple[int, int, bool]]:
    """Yield which of my pieces sees which of another process's, and whether they are the same one."""
    for query, my_piece in enumerate(mine):
        for key, piece in enumerate(others):
            if piece <= my_piece:
                yield query, key, piece == my_piece


class Ring(torch.autograd.Function):
    """Causal attention of this process's positions to those of all: q_BHLK, k_BHLK, v_BHLK, pieces, group -> o_BHLK."""

    @staticmethod
    def forward(
        context: Any, q_BHLK: torch.Tensor, k_BHLK: torch.Tensor, v_BHLK: torch.Tensor, pieces: Pieces, group: Any
    ) -> torch.Tensor:
        """o_BHLK."""
        rank, count = group.rank(), group.size()
        kv_2BHLK = torch.stack((k_BHLK, v_BHLK))
        o_BHLK = torch.zeros_like(q_BHLK, dtype=torch.float32)
        lse_BHL = torch.full_like(o_BHLK[..., 0], -torch.inf)
        for turn in range(count):
            passing = Passing(kv_2BHLK, group) if turn < count - 1 else None  # while this part is computed
            for query, key, same in _pairs(pieces[rank], pieces[(rank - turn) % count]):
                q_BHCK, o_BHCK, lse_BHC = (x_BHL.chunk(2, dim=2)[query] for x_BHL in (q_BHLK, o_BHLK, lse_BHL))
                part_BHCK, part_BHC = flash_attention(q_BHCK, *kv_2BHLK.chunk(2, dim=3)[key], same)
                whole_BHC = torch.logaddexp(lse_BHC, part_BHC)
                o_BHCK.mul_((lse_BHC - whole_BHC).exp().unsqueeze(-1))
                o_BHCK.add_(part_BHCK * (part_BHC - whole_BHC).exp().unsqueeze(-1))
                lse_BHC.copy_(whole_BHC)
            kv_2BHLK = kv_2BHLK if passing is None else passing.wait()
        o_BHLK = o_BHLK.to(q_BHLK.dtype)
        context.pieces, context.group = pieces, group
        context.save_for_backward(q_BHLK, k_BHLK, v_BHLK, o_BHLK, lse_BHL)
        return o_BHLK

    @staticmethod
    def backward(context: Any, do_BHLK: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """dq_BHLK, dk_BHLK, dv_BHLK."""
        q_BHLK, k_BHLK, v_BHLK, o_BHLK, lse_BHL = context.saved_tensors
        pieces, group = context.pieces, context.group
        rank, count = group.rank(), group.size()
        kv_2BHLK = torch.stack((k_BHLK, v_BHLK))
        dq_BHLK = torch.zeros_like(q_BHLK, dtype=torch.float32)
        slopes_2BHLK = torch.zeros_like(kv_2BHLK, dtype=torch.float32)
        for turn in range(count):
            passing = Passing(kv_2BHLK, group) if turn < count - 1 else None
            for query, key, same in _pairs(pieces[rank], pieces[(rank - turn) % count]):
                do_BHCK, q_BHCK, o_BHCK, lse_BHC = (
                    x_BHL.chunk(2, dim=2)[query] for x_BHL in (do_BHLK, q_BHLK, o_BHLK, lse_BHL)
                )
                k_BHCK, v_BHCK = kv_2BHLK.chunk(2, dim=3)[key]
                dq_BHCK, *slopes = flash_attention_backward(do_BHCK, q_BHCK, k_BHCK, v_BHCK, o_BHCK, lse_BHC, same, 0)
                dq_BHLK.chunk(2, dim=2)[query].add_(dq_BHCK)
                slopes_2BHLK.chunk(2, dim=3)[key].add_(torch.stack(slopes))
            kv_2BHLK = kv_2BHLK if passing is None else passing.wait()
            slopes_2BHLK = Passing(slopes_2BHLK, group).wait()  # after the last turn they are where they belong
        return dq_BHLK.to(q_BHLK.dtype), *slopes_2BHLK.to(q_BHLK.dtype), None, None
