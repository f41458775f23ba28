"""The curves are what the fit gives, and the table of the documentation is what the curves give."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from perfscope.analyzers.devices import DEVICES, find_device
from perfscope.analyzers.devices.roofline import bytes_ns
from perfscope.analyzers.devices.tiles import Sizes
from perfscope.analyzers.predict.curves import CURVES
from perfscope.analyzers.predict.efficiency import Work, kernel_curve, usual_range
from tests.calibration.__main__ import CURVES as CURVES_FILE
from tests.calibration.__main__ import PAGE
from tests.calibration.files import FITTED, UNSEEN
from tests.calibration.fit import fitted, source
from tests.calibration.measured import Call, Recording, recording
from tests.calibration.page import table, with_table

H100 = find_device("NVIDIA H100 80GB HBM3")


@pytest.fixture(scope="module")
def recordings(corpus: Path) -> tuple[list[Recording], list[Recording]]:
    missing = [file for file in (*FITTED, *UNSEEN) if not (corpus / file).exists()]
    if missing:
        pytest.skip(f"the corpus lacks {missing[0]}")
    return [recording(corpus, file) for file in FITTED], [recording(corpus, file) for file in UNSEEN]


@pytest.mark.corpus
def test_the_curves_are_what_the_fit_gives(recordings: tuple[list[Recording], list[Recording]]) -> None:
    assert fitted(recordings[0]) == CURVES


@pytest.mark.corpus
def test_the_page_shows_what_the_curves_give(recordings: tuple[list[Recording], list[Recording]]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page, table(*recordings)) == page


def test_no_file_is_both_fitted_and_unseen() -> None:
    assert len({*FITTED, *UNSEEN}) == len(FITTED) + len(UNSEEN)
    assert all(file in CURVES_FILE.read_text(encoding="utf-8") for file in FITTED)


def test_attention_of_qwen_on_an_h100_contains_what_it_took() -> None:
    assert H100 is not None
    heads = Sizes(batch=256, rows=559, columns=559, inner=64)
    moved = 4 * 16 * 16 * 559 * 64 * 2
    work = Work(category="attention", bytes=moved, flops=10_257_694_720, dtype="bfloat16", sizes=heads)
    found = usual_range(H100, work)
    assert found is not None
    assert found.low < 113_000 < found.high < 1.61 * found.low


def test_a_range_grows_with_what_is_moved_and_large_ones_are_no_faster_than_memory() -> None:
    for device in DEVICES:
        ranges = [usual_range(device, Work(category="elementwise", bytes=10**power)) for power in range(3, 11)]
        if ranges[0] is None:
            continue
        known = [one for one in ranges if one is not None]
        assert [one.low for one in known] == sorted(one.low for one in known)
        assert known[-1].low >= int(bytes_ns(device, 10**10))


def test_a_device_without_curves_has_those_of_the_nearest_one() -> None:
    b200, v5p = find_device("NVIDIA B200"), find_device("TPU v5p")
    assert b200 is not None
    assert v5p is not None
    work = Work(category="product", bytes=1, flops=1, dtype="bfloat16")
    curve = kernel_curve(b200, work)
    assert curve is not None
    assert curve.devices == "sm_90a"
    assert kernel_curve(v5p, work) is None


def made(moved: int, time_ns: float) -> Call:
    assert H100 is not None
    work = Work(category="elementwise", bytes=moved)
    return Call(device=H100, work=work, name="made", time_ns=round(time_ns), resolution_ns=0)


def test_the_fit_finds_the_curve_that_times_were_made_with() -> None:
    assert H100 is not None
    calls = [
        made(moved, (2_000 + bytes_ns(H100, moved) / 0.8) * noise)
        for moved in np.geomspace(1e4, 1e9, 20).astype(int).tolist()
        for noise in (0.95, 1.0, 1.05)
    ]
    (curve, _) = fitted(
        [Recording(file="", calls=tuple(calls), collectives=(), kernel_ns=Counter(), costed_ns=Counter())]
    )
    assert (curve.floor, curve.memory) == (2_000, 0.8)
    assert curve.large[0] < 0.95 < 1.05 < curve.large[1]
    assert re.search(r'devices="NVIDIA", category="elementwise"', source([curve], ["a"], "today"))
