"""Step models of the workloads as XLA compiled them."""

from __future__ import annotations

from perfscope.analyzers.readers.load import load_one
from perfscope.plugins.memory_advice.step_model_hlo import hlo_step_models
from tests.programs.test_compiled_workloads import FIXTURES


def test_the_masks_that_xla_computes_ahead_of_the_layers_are_no_layers() -> None:
    """On a v5e a loop as long as that of the layers fills a stack of masks, which theirs reads."""
    (model,) = load_one(FIXTURES / "programs-v5e" / "transformer").fact(hlo_step_models)
    assert [region.name for region in model.regions] == ["layers of the scan at training.py:100"]
