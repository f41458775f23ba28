"""Programs around the step: a defect and its twin compute the same numbers, and the files are what they should be."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from perfscope.workloads.pipelines import checkpoint, evaluation, files, metrics  # noqa: E402 (they import torch)
from perfscope.workloads.pipelines.packages import needed  # noqa: E402


def test_saving_changes_no_number() -> None:
    twin = checkpoint.train(*checkpoint.parsed(["--size", "tiny", "--steps", "3"])[:2], twin=True)
    for way in checkpoint.DEFECTS:
        options, _, _ = checkpoint.parsed(["--size", "tiny", "--steps", "3", "--defect", way])
        assert checkpoint.train(options, 2, twin=False) == twin


def test_an_evaluation_has_the_same_result_however_it_is_written() -> None:
    command = ["--size", "tiny", "--steps", "4", "--every", "2"]
    twin = evaluation.train(*evaluation.parsed(command))
    assert len(twin) == 6
    written = [part for name in evaluation.DEFECTS for part in ("--defect", name)]
    assert evaluation.train(*evaluation.parsed([*command, *written])) == pytest.approx(twin, rel=1e-5)


def test_metrics_and_clipping_change_no_number() -> None:
    twin = metrics.train(metrics.parsed(["--size", "tiny", "--steps", "3"]))
    for name in ("tracker", "clip"):
        assert metrics.train(metrics.parsed(["--size", "tiny", "--steps", "3", "--defect", name])) == twin


def test_files_that_were_read_before_the_loop_train_the_same(tmp_path: Path) -> None:
    command = ["--steps", "3", "--bytes", "65536", "--folder", str(tmp_path)]
    assert files.train(files.parsed(command)) == files.train(files.parsed([*command, "--twin"]))
    assert not list(tmp_path.iterdir())


def test_an_absent_package_is_one_line_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(SystemExit, match=r"pip install 'perfscope\[workloads\]'"):
        needed("av")


@pytest.mark.parametrize("media", ["video", "audio"])
def test_a_clip_is_the_same_decoded_alone_or_with_its_file(tmp_path: Path, media: str) -> None:
    pytest.importorskip("av", reason="the extra workloads is not installed")
    from perfscope.workloads.pipelines.media import DECODERS, write_files

    (path,) = write_files(tmp_path, media, 1, 3, 48, 0)
    decode = DECODERS[media]
    clips = [decode(str(path), clip, whole=False) for clip in range(3)]
    assert not np.array_equal(clips[0], clips[1])
    for number, clip in enumerate(clips):
        np.testing.assert_array_equal(clip, decode(str(path), number, whole=True))


@pytest.mark.parametrize("loader", ["torch", "webdataset"])
def test_decoding_a_whole_file_trains_the_same(loader: str) -> None:
    pytest.importorskip("av", reason="the extra workloads is not installed")
    pytest.importorskip("webdataset", reason="the extra workloads is not installed")
    from perfscope.workloads.pipelines import decoding

    command = ["--steps", "3", "--files", "2", "--side", "48", "--loader", loader]
    assert decoding.train(decoding.parsed(command)) == decoding.train(decoding.parsed([*command, "--defect", "whole"]))


@pytest.mark.slow
@pytest.mark.jax
def test_the_jax_programs_have_the_same_numbers_too() -> None:
    pytest.importorskip("jax")
    from perfscope.workloads.jax.pipelines import checkpoint as jax_checkpoint
    from perfscope.workloads.jax.pipelines import evaluation as jax_evaluation

    command = ["--size", "tiny", "--steps", "4"]
    twin = jax_checkpoint.train(*jax_checkpoint.parsed(command)[:2], twin=True)
    for way in ["npz", "wait"] if _has("orbax.checkpoint") else ["npz"]:
        options, _, _ = jax_checkpoint.parsed([*command, "--defect", way])
        assert jax_checkpoint.train(options, 2, twin=False) == twin
    each = [*command, "--every", "2"]
    alone = jax_evaluation.train(*jax_evaluation.parsed([*each, "--defect", "single", "--defect", "item"]))
    assert alone == pytest.approx(jax_evaluation.train(*jax_evaluation.parsed(each)), rel=1e-5)


def _has(name: str) -> bool:
    try:
        needed(name)
    except SystemExit:
        return False
    return True
