"""Names and URLs that are made to be slow, in plug-ins."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perfscope.plugins.memory_advice import jax_layers
from perfscope.plugins.parity import names
from perfscope.plugins.scale_out.remote import shown_url
from tests.growth.test_hostile_names import LONG, LONGEST, check

WORK: dict[str, Callable[[str], object]] = {
    "shown URLs": shown_url,
    "numbered layers": jax_layers._NUMBERED.fullmatch,
    "numbered words": names._NUMBERED.fullmatch,
}


@pytest.mark.parametrize("length", [LONG, pytest.param(LONGEST, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", WORK)
def test_long_names_cost_in_proportion(name: str, length: int) -> None:
    check(WORK[name], length)
