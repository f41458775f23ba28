"""`perfscope compile model.onnx`: sizes, refusals, and a plan where a converter is installed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from perfscope.__main__ import run
from perfscope.analyzers.readers.load import load_all
from perfscope.commands.run import TARGET
from perfscope.model.documents.program_files import program_file
from perfscope.model.errors import DataError
from perfscope.plugins.ahead.command import compile_
from perfscope.plugins.ahead.torch.onnx_program import sizes_of

HEAD = b"\x08\x08\x12\x07pytorch"
"""Version of the format, and the name of the producer."""


def test_an_onnx_file_is_known_and_analyze_names_the_command(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(HEAD)
    assert program_file(file, HEAD) == "onnx"
    assert program_file(tmp_path / "m.pb", HEAD) is None
    assert program_file(file, b"version https://git-lfs") is None
    with pytest.raises(DataError, match=f"perfscope compile {file} --target"):
        load_all(file)


def test_words_of_a_script_are_its_own() -> None:
    context = compile_.make_context("compile", ["m.py", "batch=2"])
    assert context.meta[TARGET][0] == ("m.py", "batch=2")
    assert sizes_of(["batch=2", "input.0=16", "x=y"]) == {"batch": 2, "input.0": 16}


def test_sizes_of_a_model(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(HEAD)
    context = compile_.make_context("compile", [str(file), "batch=2", "input.0=16", "--target", "v5e", "-q"])
    assert context.meta[TARGET][0] == (str(file), "batch=2", "input.0=16")
    assert (context.params["target"], context.params["quiet"]) == ("v5e", True)


def test_without_a_converter_one_line_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "onnx2torch", None)
    file = tmp_path / "m.onnx"
    file.write_bytes(HEAD)
    assert run(["compile", str(file), "-o", str(tmp_path / "runs")]) == 2
    shown = capfd.readouterr().err
    assert "pip install onnx2torch" in shown
    assert len(shown.strip().splitlines()) == 1


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\n", b"\x00" * 100])
def test_another_file_is_refused_in_one_line(content: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(content)
    assert run(["compile", str(file), "-o", str(tmp_path / "runs")]) == 2
    assert "not an ONNX model" in capfd.readouterr().err


def write(file: Path) -> None:
    """A product with weights, then a ``Reshape`` to a shape that the model computes from its input's."""
    onnx = pytest.importorskip("onnx")
    numpy = pytest.importorskip("numpy")
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    initializers = [
        onnx.numpy_helper.from_array(numpy.ones((64, 256), numpy.float32), "w"),
        onnx.numpy_helper.from_array(numpy.array([0], numpy.int64), "first"),
        onnx.numpy_helper.from_array(numpy.array([4, 64], numpy.int64), "rest"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Shape", ["y"], ["s"]),
        helper.make_node("Gather", ["s", "first"], ["batch"]),
        helper.make_node("Concat", ["batch", "rest"], ["to"], axis=0),
        helper.make_node("Reshape", ["y", "to"], ["z"]),
        helper.make_node("Relu", ["z"], ["out"]),
    ]
    graph = helper.make_graph(
        nodes, "m", [helper.make_tensor_value_info("x", floats, ["batch", 64])],
        [helper.make_tensor_value_info("out", floats, ["batch", 4, 64])], initializers,
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)


def test_shapes_that_a_model_computes_become_constants(tmp_path: Path) -> None:
    write(tmp_path / "m.onnx")
    import numpy as np
    import onnx
    from onnx.reference import ReferenceEvaluator

    from perfscope.plugins.ahead.torch.onnx_shapes import folded

    model = onnx.load(tmp_path / "m.onnx")
    given = {"x": np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)}
    (before,) = ReferenceEvaluator(model).run(None, given)
    after = folded(model, [(8, 64)])
    assert [node.op_type for node in after.graph.node] == ["MatMul", "Reshape", "Relu"]
    (result,) = ReferenceEvaluator(after).run(None, given)
    assert np.array_equal(before, result)


@pytest.mark.slow
def test_a_model_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnx2torch")
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "m.onnx")
    command = ["compile", "--target", "h100", "-q", "m.onnx"]
    assert run([*command, "-o", "refused"]) == 4
    assert "e.g. batch=1" in capfd.readouterr().err
    assert run([*command, "batch=8", "-o", "runs"]) == 0
    (folder,) = (path for path in (tmp_path / "runs").iterdir() if path.is_dir() and not path.is_symlink())
    (trace,) = load_all(folder)
    (plan,) = trace.torch_plans
    (graph,) = plan.plan.graphs
    assert len(graph.kernels) == 2  # the product, and the ReLU
    (tmp_path / "m.onnx").write_bytes((tmp_path / "m.onnx").read_bytes()[:1000])
    assert run([*command, "batch=8", "-o", "refused"]) == 4
    assert "not an ONNX model that can be read" in capfd.readouterr().err


def test_shapes_that_cannot_be_inferred_are_no_fault_of_the_converter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "m.onnx")
    monkeypatch.setitem(sys.modules, "onnx2torch", ModuleType("onnx2torch"))  # not reached
    from perfscope.plugins.ahead.torch import onnx_program

    def fails(*_: object) -> object:
        raise ValueError("[ShapeInferenceError] Mismatch between sizes")

    monkeypatch.setattr("perfscope.plugins.ahead.torch.onnx_shapes.folded", fails)
    with pytest.raises(SystemExit, match=r"ONNX cannot infer the shapes of this model: ValueError: \[ShapeInference"):
        onnx_program._converted(str(tmp_path / "m.onnx"), {"batch": 8})
