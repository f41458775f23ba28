"""How much a saving of memory matters, by where it is and how full that is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from perfscope.analyzers.memory.holders import FITS_ANYWHERE_BYTES, severity_of_bytes


@pytest.mark.parametrize(
    ("space", "whole", "out_of_memory", "severity"),
    [
        ("host", FITS_ANYWHERE_BYTES - 1, False, "low"),
        ("host", FITS_ANYWHERE_BYTES, False, "medium"),
        ("host", FITS_ANYWHERE_BYTES - 1, True, "high"),
        ("device", FITS_ANYWHERE_BYTES - 1, False, "medium"),
    ],
)
def test_a_peak_that_fits_on_any_host_is_no_matter(space: str, whole: int, out_of_memory: bool, severity: str) -> None:
    timeline: Any = SimpleNamespace(space=space, out_of_memory=out_of_memory, capacity_bytes=None)
    assert severity_of_bytes(whole // 2, whole, timeline) == severity
