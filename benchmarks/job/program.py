"""One rank of a training job in which everything happens that happens in a day; `whole_job.py` starts its processes.

Two gloo ranks train a small model at about 200 ms per step, most of it waiting for data from a slow store. Evaluations,
checkpoints in the training loop and asynchronous ones come at shares of the job's duration. On rank 1 a slow function
joins the training step at 55 % of the duration, and at 75 % its second process waits for a lock that is never released.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.utils.data import DataLoader, Dataset

import perfscope
from perfscope.plugins.job import recorder

WIDTH, LAYERS, BATCH = 1024, 4, 16
STORE_S = 0.2
"""Time in which the store delivers a batch."""
SLOWER_AT, HANGS_AT = 0.55, 0.75
"""Shares of the duration."""
SAVE_EVERY, EVALUATE_EVERY = 0.05, 0.08
"""Shares of the duration; every second save is asynchronous."""
TRAIN, SAVE, SAVE_ASYNC, EVALUATE, END = range(5)
"""What all ranks do after a step; rank 0 decides."""

SHORT_S = 900.0
"""Duration below which a hang is noticed after ten seconds in place of two minutes."""

log = logging.getLogger("train")


class Store(Dataset[torch.Tensor]):
    """Batches that a slow store delivers."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(STORE_S)
        return torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(index))


class Net(nn.Module):
    """Layers that train, and a table that is only kept."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(m for _ in range(LAYERS) for m in (nn.Linear(WIDTH, WIDTH), nn.GELU())))
        self.register_buffer("table", torch.randn(32_000, WIDTH))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Apply the layers."""
        out: torch.Tensor = self.layers(batch)
        return out


def look_up(batch: torch.Tensor) -> torch.Tensor:
    """Ask a slow service in each step."""
    time.sleep(0.3)
    return batch


def fetch_labels(lock: threading.Lock) -> None:
    """Never returns: the lock is held."""
    with lock:
        log.info("labels")


def evaluate(net: nn.Module) -> float:
    """Mean loss of batches that are not trained."""
    until, losses = time.perf_counter() + 2.0, []
    with torch.no_grad():
        while time.perf_counter() < until:
            losses.append(float(net(torch.randn(BATCH, WIDTH)).square().mean()))
            time.sleep(0.05)
    return sum(losses) / len(losses)


class Schedule:
    """Which events are due on rank 0."""

    def __init__(self, begin: float, seconds: float) -> None:
        self._begin, self._seconds = begin, seconds
        self._saves = self._evaluations = -1

    def share(self) -> float:
        """Share of the duration that has passed."""
        return (time.time() - self._begin) / self._seconds

    def due(self) -> int:
        """The event after this step."""
        share = self.share()
        if share >= 1:
            return END
        saves, evaluations = int(share / SAVE_EVERY), int(share / EVALUATE_EVERY)
        if self._saves < 0:
            self._saves, self._evaluations = saves, evaluations
        if saves > self._saves:
            self._saves = saves
            return SAVE_ASYNC if saves % 2 else SAVE
        if evaluations > self._evaluations:
            self._evaluations = evaluations
            return EVALUATE
        return TRAIN


class Checkpoints:
    """Saves of the job; the newest one is restored."""

    def __init__(self, folder: Path, group: Any) -> None:
        self._folder, self._group = folder, group
        self._pending: Any = None

    def restore(self, net: nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Steps of the restored save; 0 without one."""
        saved = sorted(self._folder.glob("step-*.pt"))
        if not saved:
            return 0
        state = torch.load(saved[-1], weights_only=True)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        return int(state["step"])

    def save(self, net: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Write on rank 0 while all wait."""
        if dist.get_rank() == 0:
            file = self._folder / f"step-{step:07d}.pt"
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, file.with_suffix(".part"))
            file.with_suffix(".part").rename(file)
            for old in sorted(self._folder.glob("step-*.pt"))[:-2]:
                old.unlink()
        dist.barrier()

    def save_async(self, net: nn.Module, step: int) -> None:
        """Begin to write on all ranks, and go on."""
        if self._pending is not None:
            self._pending.result()
        for old in sorted(self._folder.glob("async-*"))[:-2]:
            shutil.rmtree(old, ignore_errors=True)
        target = self._folder / f"async-{step:07d}"
        self._pending = dcp.async_save({"net": net.state_dict()}, checkpoint_id=target, process_group=self._group)


def train(arguments: argparse.Namespace) -> None:
    """Train until the job's duration is over."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank: int = arguments.rank
    dist.init_process_group("gloo", init_method=f"file://{arguments.rendezvous}", rank=rank, world_size=arguments.world)
    saving = dist.new_group(backend="gloo")
    net = Net()
    model = nn.parallel.DistributedDataParallel(net, broadcast_buffers=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    checkpoints = Checkpoints(arguments.folder, saving)
    step = checkpoints.restore(net, optimizer)
    schedule = Schedule(arguments.begin, arguments.seconds)
    lock = threading.Lock()
    order = torch.zeros(1, dtype=torch.long)
    for batch in DataLoader(Store(), num_workers=1, prefetch_factor=2):
        batch = batch[0]
        if rank == 1 and schedule.share() > SLOWER_AT:
            batch = look_up(batch)
        if rank == 1 and arguments.attempt == 1 and schedule.share() > HANGS_AT:
            lock.acquire()
            fetch_labels(lock)
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        step += 1
        perfscope.progress(tokens=BATCH, loss=loss.item())
        if step % 10 == 0:
            log.info("step %d, loss %.4f", step, loss.item())
        order[0] = schedule.due() if rank == 0 else 0
        dist.broadcast(order, 0)
        event = int(order)
        if event == END:
            break
        if event == SAVE:
            checkpoints.save(net, optimizer, step)
        elif event == SAVE_ASYNC:
            checkpoints.save_async(net, step)
        elif event == EVALUATE:
            log.info("evaluation %.4f", evaluate(net))
    dist.destroy_process_group()


def main() -> None:
    """Parse the arguments and train."""
    parser = argparse.ArgumentParser()
    for name, kind in (("rank", int), ("world", int), ("attempt", int), ("begin", float), ("seconds", float)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rendezvous", required=True)
    arguments = parser.parse_args()
    if arguments.seconds < SHORT_S:  # a hang of two minutes does not fit
        recorder.STALLED_S = 10.0
        recorder.STALLED_STEPS = 5
    logging.basicConfig(filename=arguments.folder / f"log-{arguments.rank}.txt", level=logging.INFO)
    train(arguments)


if __name__ == "__main__":
    main()
