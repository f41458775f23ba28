"""The callback for ``fit`` of Keras 3, with the backends PyTorch and JAX."""

from __future__ import annotations

from typing import Any

from keras.callbacks import Callback

from perfscope.profiler.launch.inside import Training


class KerasCallback(Callback):
    """``model.fit(..., callbacks=[perfscope.KerasCallback()])``: each ``fit`` is a run, each batch a step.

    With ``steps_per_execution`` a step is that many batches. Under ``perfscope run`` it only marks the steps.
    """

    def __init__(self, **options: Any) -> None:
        """``options``: those of `perfscope.profile`."""
        super().__init__()
        self._training = Training(**options)

    def on_train_begin(self, logs: Any = None) -> None:
        """The loop is about to begin."""
        self._training.begin()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """A batch ended."""
        self._training.step()

    def on_train_end(self, logs: Any = None) -> None:
        """The loop ended. After an error in it Keras calls nothing, and the run ends with the process."""
        self._training.end()

    def analysis(self) -> Any:
        """The `perfscope.Analysis` of the last training; ``None`` if nothing was captured here."""
        return self._training.analysis()
