"""A few tensors of a pretended device through torch: what ends the process shall do so here, and not in a program."""

from __future__ import annotations

import torch

from perfscope._cut.torch_pretend import Pretence
from perfscope._cut.torch_pretend_hooks import MisfitError
from perfscope.profiler.ahead.torch.cuda import FakeCuda
from perfscope.profiler.ahead.torch.fake_tensors import FakeWorld


def run_trial() -> None:
    """Forward, backward and an optimizer's step on ``cuda``; ``MisfitError`` where torch does not play its part."""
    Pretence().install()
    world = FakeWorld(pretended=True)
    world.install()
    FakeCuda(name="trial", count=1, memory_bytes=1 << 30, cores=100, capability=(9, 0), pretended=True).install()
    with world.mode:
        try:
            model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8)).to("cuda")
            optimizer = torch.optim.AdamW(model.parameters())
            loss = model(torch.randn(4, 8, device="cuda")).square().mean()
            loss.backward()
            optimizer.step()
        except Exception as error:
            text = " ".join(str(error).split())[:200]
            raise MisfitError(f"a step over it raised {type(error).__name__}: {text}") from error
    made = {*(one.device.type for one in model.parameters()), loss.device.type}
    made |= {"none" if one.grad is None else one.grad.device.type for one in model.parameters()}
    if made != {"cuda"}:
        raise MisfitError(f"tensors asked for on cuda are on {', '.join(sorted(made))}")
