"""``perfscope.TransformersCallback``, with the real Trainer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugins.trainers import judge, only_run, require, run

pytestmark = [pytest.mark.slow, pytest.mark.torch]

PROGRAM = """
import sys
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
rows = [{"input_ids": torch.arange(8) + n, "labels": torch.arange(8) + n} for n in range(48)]
settings = TrainingArguments("out", max_steps=12, per_device_train_batch_size=2, gradient_accumulation_steps=2,
    report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, use_cpu=True)

class Failing(list):
    reads = 0

    def __getitem__(self, index):
        self.reads += 1
        if self.reads > 24 and "fails" in sys.argv:
            raise KeyError("planted")
        return super().__getitem__(index)

result = Trainer(model, settings, train_dataset=Failing(rows), callbacks=callbacks()).train()
print("loss", result.training_loss.hex())
"""


def test_each_update_is_a_step_and_the_program_prints_the_same(tmp_path: Path) -> None:
    require("torch", "transformers", "accelerate")
    quiet = PROGRAM.replace(
        "result =", "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()):\n    result ="
    )
    judge(quiet, "perfscope.TransformersCallback", 12, tmp_path)


def test_an_error_in_the_loop_ends_the_run_as_failed_and_is_the_programs(tmp_path: Path) -> None:
    require("torch", "transformers", "accelerate")
    head = "import perfscope\ndef callbacks():\n    return [perfscope.TransformersCallback(quiet=True)]\n"
    (tmp_path / "train.py").write_text(head + PROGRAM)
    done = run(tmp_path, "train.py", "fails")
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("KeyError: 'planted'")
    made, process = only_run(tmp_path)
    assert (made.state, made.exit_code) == ("finished", 1)
    assert 3 <= process.steps_seen < 12
