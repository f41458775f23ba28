"""The roofline: what any work takes at least on a device, and what bounds it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.devices import DEVICES, Device, named_device
from perfscope.analyzers.devices.roofline import Roof, kernel_roof, peak_flops, peak_ratio


def device(name: str) -> Device:
    found = named_device(name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("dtype", "precision", "on", "tera"),
    [
        ("float32", "default", "H100 SXM", 494.7),
        ("float32", "highest", "H100 SXM", 66.9),
        ("tf32", "highest", "H100 SXM", 494.7),
        ("tf32", "highest", "V100 SXM2", 15.7),
        ("float8_e4m3fn", "default", "H100 SXM", 1978.9),
        ("bfloat16", "default", "MI300X", 1307.4),
        ("float32", "highest", "TPU v5e", 197 / 6),
    ],
)
def test_peaks_by_the_names_of_torch(dtype: str, precision: str, on: str, tera: float) -> None:
    assert peak_flops(device(on), dtype, precision) == pytest.approx(tera * 1e12)


def test_a_ratio_of_peaks_needs_both() -> None:
    assert peak_ratio(device("A100 SXM 80GB"), "tf32", "float32") == 8
    with pytest.raises(ValueError, match="float64"):
        peak_ratio(device("H100 SXM"), "bfloat16", "float64")


@given(
    on=st.sampled_from(DEVICES),
    flops=st.integers(0, 10**15),
    moved=st.integers(0, 10**12),
    dtype=st.sampled_from(["float32", "bfloat16", "float64"]),
)
def test_the_roof_is_the_longest_part_and_the_bound_names_it(on: Device, flops: int, moved: int, dtype: str) -> None:
    roof = kernel_roof(on, flops=flops, dtype=dtype, moved=moved)
    parts = {"compute": roof.compute_ns, "memory": roof.memory_ns}
    assert roof.roof_ns == max(part for part in parts.values() if part is not None)
    if roof.compute_ns is None or not (flops or moved):
        assert roof.compute_ns is not None or peak_flops(on, dtype) is None
    else:
        assert parts.get(roof.bound, roof.roof_ns) == roof.roof_ns


@pytest.mark.parametrize(
    ("roof", "bound"),
    [
        (Roof(compute_ns=1.0, memory_ns=2.0, link_ns=3.0), "link"),
        (Roof(compute_ns=1.0, memory_ns=2.0, link_ns=3.0, host_ns=4.0), "host"),
        (Roof(compute_ns=1.0, memory_ns=2.0, link_ns=None), "unknown"),
        (Roof(compute_ns=None, memory_ns=2.0), "unknown"),
        (Roof(compute_ns=0.0, memory_ns=0.0), "unknown"),
    ],
)
def test_an_unknown_part_leaves_the_bound_unknown(roof: Roof, bound: str) -> None:
    assert roof.bound == bound
