"""Names and URLs that are made to be slow, in plug-ins."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perfscope.plugins.memory_advice import jax_layers
from perfscope.plugins.parity import names
from perfscope.plugins.scale_out import remote
from tests.growth.test_hostile_names import check

WORK: dict[str, Callable[[str], object]] = {
    "shown URLs": remote.shown_url,
    "numbered layers": lambda text: jax_layers._NUMBERED.fullmatch(text),
    "numbered words": lambda text: names._NUMBERED.fullmatch(text),
}


@pytest.mark.parametrize("name", WORK)
def test_work_for_long_names_is_proportional(name: str) -> None:
    check(WORK[name], [remote, jax_layers, names])
