"""What the declaration of its rules says to the core: the line of the fix, and doubts about device times."""

from __future__ import annotations

from perfscope.analyzers.doubts import doubt_of
from perfscope.analyzers.fix_lines import fix_line
from perfscope.analyzers.registry import load_rule
from tests.engine.test_fix_lines import TRAINING, finding, line_of
from tests.time.test_device_doubts import in_a_row


def test_the_fix_is_at_the_decorator() -> None:
    fix = fix_line("excess_remat", finding("return x @ w"), lambda file: TRAINING)
    assert fix == line_of("@functools.partial(jax.checkpoint")


def test_rules_on_work_doubt_kernels_that_overlap() -> None:
    doubted, sound = in_a_row(150).build(), in_a_row(100).build()
    for rule in ("excess_remat", "missing_remat"):
        assert doubt_of(load_rule(rule), doubted) is not None
        assert doubt_of(load_rule(rule), sound) is None
