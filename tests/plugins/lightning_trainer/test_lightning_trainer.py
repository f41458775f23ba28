"""``perfscope.LightningCallback``, with the real Trainer of both packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugins.trainers import judge, only_run, require, run

pytestmark = [pytest.mark.slow, pytest.mark.torch]

PROGRAM = """
import sys
import torch
import PACKAGE as pl

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(16, 1)

    def training_step(self, batch, index):
        if index == 9 and "fails" in sys.argv:
            raise KeyError("planted")
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

torch.manual_seed(0)
trainer = pl.Trainer(max_steps=12, accumulate_grad_batches=2, accelerator="cpu", logger=False, barebones=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks())
module = Module()
trainer.fit(module, torch.utils.data.DataLoader(torch.ones(64, 16), batch_size=2))
print("weight", module.net.weight.sum().item().hex())
"""


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_each_update_is_a_step_and_the_program_prints_the_same(package: str, tmp_path: Path) -> None:
    require("torch", package.partition(".")[0])
    judge(PROGRAM.replace("PACKAGE", package), "perfscope.LightningCallback", 12, tmp_path)


def test_an_error_in_the_loop_ends_the_run_as_failed_and_is_the_programs(tmp_path: Path) -> None:
    require("torch", "lightning")
    head = "import perfscope\ndef callbacks():\n    return [perfscope.LightningCallback(quiet=True)]\n"
    (tmp_path / "train.py").write_text(head + PROGRAM.replace("PACKAGE", "lightning.pytorch"))
    done = run(tmp_path, "train.py", "fails")
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("KeyError: 'planted'")
    made, process = only_run(tmp_path)
    assert (made.exit_code, process.steps_seen) == (1, 4)
