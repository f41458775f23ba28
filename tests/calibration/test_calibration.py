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
from perfscope.analyzers.predict.efficiency import Work, element_cycles_ns, kernel_curve, usual_range
from tests.calibration.__main__ import CURVES_FILE, PAGE
from tests.calibration.files import PROGRAMS
from tests.calibration.fit import fitted, source
from tests.calibration.measured import Call, Recording, recordings
from tests.calibration.page import held_out, table, with_table

H100 = find_device("NVIDIA H100 80GB HBM3")


@pytest.fixture(scope="module")
def measured(corpus: Path) -> list[Recording]:
    try:
        return recordings(corpus)
    except FileNotFoundError as missing:
        pytest.skip(f"the corpus lacks {missing}")


@pytest.mark.corpus
def test_the_curves_are_what_the_fit_gives(measured: list[Recording]) -> None:
    assert fitted(measured) == CURVES


@pytest.mark.corpus
def test_the_page_shows_what_the_curves_give(measured: list[Recording]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page, table(measured, CURVES)) == page


def test_every_file_is_of_one_program_and_named_beside_the_curves() -> None:
    files = [file for files in PROGRAMS.values() for file in files]
    assert len(set(files)) == len(files)
    assert all(file in CURVES_FILE.read_text(encoding="utf-8") for file in files)


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


def made(moved: int, time_ns: float, dtype: str = "", *, strided: bool = False) -> Call:
    assert H100 is not None
    work = Work(category="strided" if strided else "elementwise", bytes=moved, dtype=dtype)
    return Call(device=H100, work=work, name="made", time_ns=round(time_ns), resolution_ns=0)


def program(name: str, *calls: Call) -> Recording:
    return Recording(program=name, calls=calls, collectives=(), kernel_ns=Counter(), costed_ns=Counter())


SIZES = np.geomspace(1e4, 1e9, 20).astype(int).tolist()


def test_the_fit_finds_the_curve_that_times_were_made_with() -> None:
    assert H100 is not None
    calls = [
        made(moved, (2_000 + bytes_ns(H100, moved) / 0.8) * noise) for moved in SIZES for noise in (0.95, 1.0, 1.05)
    ]
    curve, of_vendor = fitted([program("a", *calls), program("b", *calls)])[::-1]
    assert (curve.devices, of_vendor.devices) == ("sm_90a", "NVIDIA")
    assert (curve.floor, curve.memory) == (2_000, 0.8)
    assert curve.large[0] < 0.95 < 1.05 < curve.large[1]
    assert re.search(r'devices="NVIDIA", category="elementwise"', source([of_vendor], ["a"], "today"))


def test_a_curve_of_an_architecture_needs_two_programs() -> None:
    assert H100 is not None
    calls = [made(moved, 2_000 + bytes_ns(H100, moved)) for moved in SIZES]
    assert [curve.devices for curve in fitted([program("a", *calls)])] == ["NVIDIA"]


def test_the_fit_tells_elements_from_bytes_by_dtypes_of_two_sizes() -> None:
    assert H100 is not None
    calls = []
    for dtype in ("float32", "bfloat16"):
        for moved in SIZES:
            single = element_cycles_ns(H100, Work(category="strided", bytes=moved, dtype=dtype)) / 2.5
            calls.append(made(moved, 2_000 + max(single, bytes_ns(H100, moved) / 0.8), dtype, strided=True))
    (curve,) = fitted([program("a", *calls)])
    assert (curve.elements, curve.memory) == (2.5, 0.8)


def test_a_program_is_judged_by_curves_fitted_without_it() -> None:
    assert H100 is not None
    slow, fast = ([made(moved, share * (2_000 + bytes_ns(H100, moved))) for moved in SIZES] for share in (4, 1))
    alone = held_out([program("slow", *slow), program("fast", *fast)])["elementwise", H100.name]
    assert not any(one.inside for one in alone)
    same = held_out([program("a", *fast), program("b", *fast)])["elementwise", H100.name]
    assert all(one.inside for one in same)


def test_products_are_bound_by_elements_where_rows_are_no_multiple_of_an_access() -> None:
    assert H100 is not None

    def elements_ns(columns: int, dtype: str) -> float:
        sizes = Sizes(batch=16, rows=5185, columns=columns, inner=64)
        moved = 2 * columns * 5185
        work = Work(category="product", bytes=moved, flops=sizes.flops, dtype=dtype, sizes=sizes)
        return element_cycles_ns(H100, work)

    assert elements_ns(5184, "bfloat16") == elements_ns(5184, "bf16") == 0
    assert elements_ns(5185, "bfloat16") == elements_ns(5185, "bf16") > 0
    assert elements_ns(5188, "bfloat16") > 0 == elements_ns(5188, "tf32")
