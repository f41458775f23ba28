"""The program of `make demo`: five defects in one training loop, and the same training without them.

    python -m perfscope.workloads.demo
    python -m perfscope.workloads.demo --twin
    python -m perfscope.workloads.demo --pairs 6

The model is that of `moe`. Text is tokenised in the loop, a function is compiled again in every step, the host waits
for each expert and for each loss, and the optimizer updates one parameter after the other. With ``--pairs`` both loops
run in turns in one process, and their step times are printed.

Shapes: B batch, M tokens of a sequence and its target, L = M - 1, D model features.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from perfscope.workloads.host_defects import encoded
from perfscope.workloads.moe import SIZES, Block
from perfscope.workloads.options import Options
from perfscope.workloads.training import build, loss_of, report

SIZE = SIZES["cpu"]
DOCUMENTS = 4
WORDS = 250_000
"""Words of a document, of which a batch takes the first: about 75 ms of a tokeniser in Python."""
STEPS = 16
STEPS_IN_TURN = 4
"""Steps of a loop before it is the other one's turn."""
Times = tuple[float, float]
"""Time of a step in ms: by the clock, and on a core."""
RATE, DECAY = 0.1, 0.999
"""Dropout rate of the first step, and its factor from step to step."""


def documents() -> list[str]:
    """Texts to train on."""
    return [" ".join(f"word{number * (first + 1) % 977}" for number in range(WORDS)) for first in range(DOCUMENTS)]


def batch_of(ids: Sequence[int]) -> torch.Tensor:
    """tokens_BM from the first ids of a document."""
    length = SIZE.seq + 1
    return torch.tensor(ids[: SIZE.batch * length]).view(SIZE.batch, length) % SIZE.vocab


def tokenised_in_the_loop(texts: Sequence[str]) -> Iterator[torch.Tensor]:
    """tokens_BM of one document after the other, without end."""
    while True:
        for text in texts:
            yield batch_of(encoded(text))


def tokenised_before(texts: Sequence[str]) -> Iterator[torch.Tensor]:
    """The same tokens_BM, tokenised once."""
    batches = [batch_of(encoded(text)) for text in texts]
    while True:
        yield from batches


def dropped(tokens_BM: torch.Tensor, rate: float) -> torch.Tensor:
    """tokens_BM of which a part is replaced by token 0."""
    kept = torch.rand(tokens_BM.shape) >= rate  # defect: recompilation: the rate is a constant of the compiled code
    return torch.where(kept, tokens_BM, 0)


def masked(tokens_BM: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
    """The same with a rate that is data."""
    return torch.where(torch.rand(tokens_BM.shape) >= rate, tokens_BM, 0)


class Loop:
    """One training, whose steps are called for. ``twin``: without the defects."""

    def __init__(self, *, twin: bool) -> None:
        self.twin = twin
        self.model = build(Block, Options(variant="index_add" if twin else "loop", size=SIZE))
        if twin:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3, fused=True)
        else:
            parameters = self.model.parameters()
            self.optimizer = torch.optim.AdamW(parameters, lr=3e-3, foreach=False)  # defect: unfused_optimizer
        self.batches = (tokenised_before if twin else tokenised_in_the_loop)(documents())
        self.drop: Callable[..., torch.Tensor] = torch.compile(
            masked if twin else dropped, dynamic=False, backend="eager"
        )
        self.losses: list[torch.Tensor] = []
        self.total = 0.0

    def step(self) -> None:
        """One step of training."""
        rate = RATE * DECAY ** len(self.losses)
        tokens_BM = next(self.batches)  # tokenises while the device waits
        loss = loss_of(self.model, self.drop(tokens_BM, torch.tensor(rate) if self.twin else rate))
        loss.backward()
        if not self.twin:
            self.total += loss.item()  # defect: host_sync: the host waits for the step it has just queued
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.detach())


def compare(pairs: int) -> list[tuple[Times, Times]]:
    """Step times of both loops in turns in this process: with the defects, and without them."""
    loops = [Loop(twin=False), Loop(twin=True)]
    for loop in loops:
        loop.step()  # compiles, and makes the optimizer's state
    times = []
    for number in range(pairs):
        pair: list[Times] = [(0.0, 0.0), (0.0, 0.0)]
        for side in (0, 1) if number % 2 else (1, 0):
            begin, on_core = time.perf_counter(), time.process_time()
            for _ in range(STEPS_IN_TURN):
                loops[side].step()
            ms = 1e3 / STEPS_IN_TURN
            pair[side] = ((time.perf_counter() - begin) * ms, (time.process_time() - on_core) * ms)
        times.append((pair[0], pair[1]))
    return times


def print_saving(times: Sequence[tuple[Times, Times]]) -> None:
    """Print the measured saving of the pairs, with its range."""
    before, after = (statistics.median(wall for wall, _ in side) for side in zip(*times, strict=True))
    saved = sorted(base[0] - twin[0] for base, twin in times)
    on_core = statistics.median(base[1] - twin[1] for base, twin in times)
    print(f"Measured: {before:.0f} ms per step with the five defects, {after:.0f} ms without them")
    print(
        f"Saved: {statistics.median(saved):.0f} ms per step ({saved[0]:.0f} to {saved[-1]:.0f} ms in {len(saved)} "
        f"turns of both loops in one process); {on_core:.0f} ms of time on a core, without waiting for one"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Train, or compare both trainings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--twin", action="store_true", help="without the defects")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--pairs", type=int, help="compare both loops in so many turns, and print the saving")
    asked = parser.parse_args(argv)
    if asked.pairs:
        # Every step compiles: after the usual limit of 8, torch would run the function eagerly.
        with torch._dynamo.config.patch(recompile_limit=10_000, accumulated_recompile_limit=10_000):
            print_saving(compare(asked.pairs))
        return
    loop = Loop(twin=asked.twin)
    for _ in range(asked.steps):
        loop.step()
    report(loop.losses)


if __name__ == "__main__":
    main()
