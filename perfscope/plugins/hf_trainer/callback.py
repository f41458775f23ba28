"""The callback for ``transformers.Trainer``, and the trainers of trl and others that are made of it."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from perfscope.profiler.launch.inside import Training


class TransformersCallback(TrainerCallback):
    """``Trainer(..., callbacks=[perfscope.TransformersCallback()])``: each ``train()`` is a run, each update a step.

    With gradient accumulation a step is several batches. Under ``perfscope run`` it only marks the steps.
    """

    def __init__(self, **options: Any) -> None:
        """``options``: those of `perfscope.profile`."""
        self._training = Training(**options)

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """The loop is about to begin."""
        self._training.begin()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """The optimizer stepped."""
        self._training.step()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """The loop ended. After an error in it the trainer calls nothing, and the run ends with the process."""
        self._training.end()

    def analysis(self) -> Any:
        """The `perfscope.Analysis` of the last training; ``None`` if nothing was captured here."""
        return self._training.analysis()
