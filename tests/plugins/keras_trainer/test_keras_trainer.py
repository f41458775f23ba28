"""``perfscope.KerasCallback``, with the real Keras on each backend that perfscope captures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugins.trainers import judge, require

pytestmark = pytest.mark.slow

PROGRAM = """
import keras
import numpy as np

keras.utils.set_random_seed(0)
model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse")
history = model.fit(np.ones((48, 8), "float32"), np.ones((48, 1), "float32"), batch_size=4, epochs=1, verbose=0,
    callbacks=callbacks())
print("loss", history.history["loss"][0].hex())
"""


@pytest.mark.parametrize("backend", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("torch", "jax")])
def test_each_batch_is_a_step_and_the_program_prints_the_same(backend: str, tmp_path: Path) -> None:
    require(backend, "keras")
    judge(PROGRAM, "perfscope.KerasCallback", 12, tmp_path, KERAS_BACKEND=backend)
