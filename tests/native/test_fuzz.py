"""Scanners read mutated inputs through the border; ``make fuzz-native`` does this with AddressSanitizer."""

from __future__ import annotations

import pytest

from tests.native import fuzz
from tests.native.twins import needs_library


@needs_library
@pytest.mark.parametrize("reader", fuzz.SCANNERS)
def test_mutated_inputs_are_read_in_part_or_left(reader: str) -> None:
    assert 0 < fuzz.scan(reader, 0, 400) < 400


def test_inputs_are_the_same_each_time() -> None:
    first = [fuzz.input_of("kineto", number) for number in range(40, 60)]
    fuzz._bases.cache_clear()
    assert first == [fuzz.input_of("kineto", number) for number in range(40, 60)]
    assert len(set(first)) > 10
