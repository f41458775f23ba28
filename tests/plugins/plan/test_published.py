"""Published runs: their steps lie in the modelled ranges, and docs/plan.md has the numbers of this model."""

from __future__ import annotations

import pytest

from benchmarks.published_plans import PUBLISHED, Published, evaluate, row
from tests.conftest import REPOSITORY

TOO_LARGE = "Llama 3 405B, 8,192"
"""Its schedule holds fewer micro-batches than the modelled one."""

TOO_SLOW = "MPT 30B, 8 H100"
"""Its attention is slower than the modelled one."""


@pytest.mark.parametrize("published", PUBLISHED, ids=[published.name for published in PUBLISHED])
def test_published_run(published: Published) -> None:
    result = evaluate(published, rivals=False)
    assert result.inside == (published.name != TOO_SLOW)
    assert result.fits == (published.name != TOO_LARGE)
    cells = row(result).rpartition(" yes |")[0]  # all but whether it is on the front, which takes minutes
    assert cells in (REPOSITORY / "docs" / "plan.md").read_text()
