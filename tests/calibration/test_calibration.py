"""The curves are what the fit gives, and the table of the documentation is what the curves give."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from perfscope.analyzers.devices import DEVICES, find_device
from perfscope.analyzers.devices.roofline import bytes_ns
from perfscope.analyzers.devices.tiles import Sizes
from perfscope.analyzers.predict.curves import CURVES
from perfscope.analyzers.predict.efficiency import Work, element_cycles_ns, kernel_curve, usual_range
from perfscope.analyzers.predict.spans import NO_TIME
from tools.calibration import __main__ as calibration
from tools.calibration.__main__ import CURVES_FILE, PAGE
from tools.calibration.files import SOURCES, Source, absent, commands
from tools.calibration.fit import fitted, source
from tools.calibration.measured import Call, Recording, recordings
from tools.calibration.page import held_out, table, with_table

H100 = find_device("NVIDIA H100 80GB HBM3")


@pytest.fixture(scope="module")
def measured(corpus: Path) -> list[Recording]:
    missing = absent(corpus)
    if missing:
        pytest.skip(f"the corpus lacks {len(missing)} recordings, {missing[0].file} first")
    return recordings(corpus)


@pytest.mark.corpus
def test_the_curves_are_what_the_fit_gives(measured: list[Recording]) -> None:
    assert fitted(measured) == CURVES


@pytest.mark.corpus
def test_the_page_shows_what_the_curves_give(measured: list[Recording]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page, table(measured, CURVES)) == page


def test_every_file_is_of_one_program_and_named_beside_the_curves() -> None:
    files = [source.file for source in SOURCES]
    assert len(set(files)) == len(files)
    assert all(file in CURVES_FILE.read_text(encoding="utf-8") for file in files)


def test_attention_of_qwen_on_an_h100_contains_what_it_took() -> None:
    assert H100 is not None
    heads = Sizes(batch=256, rows=559, columns=559, inner=64)
    moved = 4 * 16 * 16 * 559 * 64 * 2
    work = Work(category="attention", bytes=moved, flops=10_257_694_720, dtype="bfloat16", sizes=heads)
    found = usual_range(H100, work)
    assert found is not None
    assert found.low < 113_000 < found.high < 4 * found.low


def test_a_range_grows_with_what_is_moved_and_large_ones_are_no_faster_than_memory() -> None:
    for device in DEVICES:
        ranges = [usual_range(device, Work(category="elementwise", bytes=10**power)) for power in range(3, 11)]
        if ranges[0] is None:
            continue
        known = [one for one in ranges if one is not None]
        assert [one.low for one in known] == sorted(one.low for one in known)
        assert known[-1].low >= int(bytes_ns(device, 10**10))


def test_a_device_without_curves_has_those_of_the_nearest_one() -> None:
    l40s, v5p = find_device("NVIDIA L40S"), find_device("TPU v5p")
    assert l40s is not None
    assert v5p is not None
    work = Work(category="product", bytes=1, flops=1, dtype="bfloat16")
    curve = kernel_curve(l40s, work)
    assert curve is not None
    assert curve.devices == "sm_80"
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


def test_times_are_added_up_by_program_and_device() -> None:
    assert H100 is not None
    one, two = (made(moved, 1.1 * (2_000 + bytes_ns(H100, moved))) for moved in (10**6, 10**8))
    curves = fitted([program("a", *(made(moved, 2_000 + bytes_ns(H100, moved)) for moved in SIZES))])
    ranges = [usual_range(H100, call.work, curves) for call in (one, two)]
    both = sum((found for found in ranges if found is not None), NO_TIME)
    factor = max(both.middle, one.time_ns + two.time_ns) / min(both.middle, one.time_ns + two.time_ns)
    text = table([program("b", one, two)], curves)
    assert "1 of 1 measured times lie between the sums of the ends" in text
    assert f"the middles differ from them by a factor of {factor:.2f}" in text
    assert "and 100% of their time" in text
    assert "Held out: no other program to judge by." in text


def test_without_recordings_nothing_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibration, "CORPUS", tmp_path)
    assert calibration.main([]) == 4
    assert "--sources" in capsys.readouterr().err


@pytest.mark.parametrize("asked", [[], ["--fit"]])
def test_where_recordings_are_absent_the_others_are_judged_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], asked: list[str]
) -> None:
    there = tmp_path / SOURCES[0].file
    there.parent.mkdir()
    there.touch()
    calls = [made(moved, 2_000 + bytes_ns(H100, moved)) for moved in SIZES] if H100 else []
    monkeypatch.setattr(calibration, "CORPUS", tmp_path)
    monkeypatch.setattr(calibration, "recordings", lambda _: [program("a", *calls)])
    for name in ("PAGE", "CURVES_FILE"):
        monkeypatch.setattr(calibration, name, tmp_path / "never written")
    assert calibration.main(asked) == 0
    said = capsys.readouterr()
    assert "| elementwise | H100 SXM | 20 |" in said.out
    assert len(said.err.splitlines()) == 1
    assert all((source.file in said.err) == (source != SOURCES[0]) for source in SOURCES)
    assert not (tmp_path / "never written").exists()


def test_the_commands_fetch_what_they_name(tmp_path: Path) -> None:
    upstream, corpus = tmp_path / "upstream" / "owner" / "name", tmp_path / "corpus"
    upstream.mkdir(parents=True)
    corpus.mkdir()
    (upstream / "plain.json").write_bytes(b"plain")
    (upstream / "packed.json.gz").write_bytes(gzip.compress(b"packed"))
    with tarfile.open(upstream / "all.tar.gz", "w:gz") as archive:
        archive.add(upstream / "plain.json", "inner/plain.json")
    environment = {
        **os.environ, "GIT_CONFIG_COUNT": "3", "GIT_CONFIG_KEY_0": f"url.file://{tmp_path}/upstream/.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/", "GIT_CONFIG_KEY_1": "user.name", "GIT_CONFIG_VALUE_1": "a",
        "GIT_CONFIG_KEY_2": "user.email", "GIT_CONFIG_VALUE_2": "a@b",
    }  # fmt: skip

    def git(*words: str) -> str:
        ran = subprocess.run(["git", *words], cwd=upstream, env=environment, check=True, capture_output=True, text=True)
        return ran.stdout.strip()

    git("init", "-q")
    git("config", "uploadpack.allowFilter", "true")
    git("config", "uploadpack.allowAnySHA1InWant", "true")
    git("add", ".")
    git("commit", "-q", "-m", "a")
    commit = git("rev-parse", "HEAD")
    asked = [
        Source("calibration/plain.json.gz", "owner/name", commit, "plain.json"),
        Source("kineto/packed.json.gz", "owner/name", commit, "packed.json.gz"),
        Source("kineto/member.json.gz", "owner/name", commit, "all.tar.gz", "inner/plain.json"),
    ]
    subprocess.run(["bash", "-e", "-o", "pipefail", "-c", commands(asked)], cwd=corpus, env=environment, check=True)
    held = {source.file: gzip.decompress((corpus / source.file).read_bytes()) for source in asked}
    assert list(held.values()) == [b"plain", b"packed", b"plain"]
