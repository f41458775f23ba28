"""The callback for the ``Trainer`` of Lightning: of the package that the program imported."""

from __future__ import annotations

import sys
from typing import Any

from perfscope.profiler.launch.inside import Training

if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback


class LightningCallback(Callback):
    """``Trainer(callbacks=[perfscope.LightningCallback()])``: each ``fit`` is a run, each update a step.

    With gradient accumulation a step is several batches. Under ``perfscope run`` it only marks the steps.
    """

    def __init__(self, **options: Any) -> None:
        """``options``: those of `perfscope.profile`."""
        self._training = Training(**options)
        self._updates = 0

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        """The loop is about to begin, after the sanity check."""
        self._updates = trainer.global_step
        self._training.begin()

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """A batch ended; the step too, if the optimizer stepped."""
        if trainer.global_step != self._updates:
            self._updates = trainer.global_step
            self._training.step()

    def on_train_end(self, *_: Any) -> None:
        """The loop ended."""
        self._training.end()

    def on_exception(self, *_: Any) -> None:
        """The loop ended by an error or Ctrl-C."""
        self._training.end(failed=True)

    def analysis(self) -> Any:
        """The `perfscope.Analysis` of the last training; ``None`` if nothing was captured here."""
        return self._training.analysis()
