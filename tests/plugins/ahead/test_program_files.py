"""`perfscope compile FILE`: programs before optimization, as jax and torch write them, compiled for another machine."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from perfscope.__main__ import run
from perfscope.analyzers.programs import programs
from perfscope.analyzers.readers.load import load_all, load_one
from perfscope.commands.run import TARGET
from perfscope.model.documents import compile_manifest
from perfscope.model.documents.program_files import HEAD_BYTES, ProgramFile, program_file
from perfscope.model.errors import DataError
from perfscope.plugins.ahead.command import compile_
from perfscope.plugins.ahead.jax.export import load_artifact
from tests.plugins.ahead.compilers import require

jax = pytest.importorskip("jax")
WIDTH = 256


def step(w, x):  # type: ignore[no-untyped-def]
    import jax.numpy as jnp

    return jnp.mean((jnp.tanh(x @ w) @ w.T - x) ** 2)


def arguments() -> tuple[object, ...]:
    return (jax.ShapeDtypeStruct((WIDTH, 512), "float32"), jax.ShapeDtypeStruct((64, WIDTH), "float32"))


def lowered():  # type: ignore[no-untyped-def]
    return jax.jit(jax.grad(step)).lower(*arguments())


def write(folder: Path, kind: str) -> Path:
    file = folder / f"step.{kind}"
    if kind == "mlir":
        file.write_text(lowered().as_text())
    elif kind == "mlirbc":
        code = io.BytesIO()
        lowered().compiler_ir("stablehlo").operation.write_bytecode(code)
        file.write_bytes(code.getvalue())
    elif kind == "hlo.txt":
        file.write_text(lowered().as_text("hlo"))
    elif kind == "hlo.pb":
        file.write_bytes(lowered().compiler_ir("hlo").as_serialized_hlo_module_proto())
    elif kind == "jaxexport":
        pytest.importorskip("flatbuffers")
        exported = jax.export.export(jax.jit(jax.grad(step)), platforms=["cuda"])(*arguments())
        file.write_bytes(exported.serialize())
    return file


def run_of(folder: Path) -> Path:
    (run_folder,) = (path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    return run_folder


KINDS: tuple[tuple[str, ProgramFile | None], ...] = (
    ("mlir", "stablehlo"), ("mlirbc", "stablehlo"), ("hlo.txt", None), ("hlo.pb", None), ("jaxexport", "jax_export"),
)  # fmt: skip


@pytest.mark.parametrize(("kind", "known"), KINDS)
def test_each_kind_is_known_and_analyze_names_the_command(tmp_path: Path, kind: str, known: ProgramFile | None) -> None:
    file = write(tmp_path, kind)
    assert program_file(file, file.read_bytes()[:HEAD_BYTES]) == known
    if known is None:  # HLO is read: what it computes is in it, what XLA makes of it is not
        shown = " ".join(load_one(file).source.notes)
    else:
        with pytest.raises(DataError) as caught:
            load_all(file)
        shown = str(caught.value)
    assert f"perfscope compile {file} --target" in shown


def test_a_program_of_torch_export_is_known_by_what_is_in_it(tmp_path: Path) -> None:
    for member, known in (("m/models/model.json", "torch_export"), ("m/data.pkl", None)):
        with zipfile.ZipFile(tmp_path / "m.pt2", "w") as archive:
            archive.writestr(member, "{}")
        assert program_file(tmp_path / "m.pt2", (tmp_path / "m.pt2").read_bytes()) == known


@pytest.mark.parametrize(
    "head", [b"", b"PK\x03\x04 no zip", b"\x04\x00\x00\x00" + bytes(60), b"import jax\n", b"HloModule m"]
)
def test_other_files_are_none(tmp_path: Path, head: bytes) -> None:
    (tmp_path / "x").write_bytes(head)
    assert program_file(tmp_path / "x", head) is None


def test_symbolic_sizes_are_refused_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("flatbuffers")
    (batch,) = jax.export.symbolic_shape("batch")
    shapes = (arguments()[0], jax.ShapeDtypeStruct((batch, WIDTH), "float32"))
    file = tmp_path / "step.jaxexport"
    file.write_bytes(jax.export.export(jax.jit(step), platforms=["cuda"])(*shapes).serialize())
    with pytest.raises(DataError, match=r"symbolic sizes \(.*batch"):
        load_artifact(file, [])


@pytest.mark.parametrize(
    "content", [b"HloModule m, is_scheduled=false\n\nENTRY", b"module @m { stablehlo.", b"ML\xefR broken"]
)
def test_damage_is_one_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "step"
    file.write_bytes(content)
    with pytest.raises(DataError) as caught:
        load_artifact(file, [])
    assert "\n" not in str(caught.value)


def test_a_compiled_program_is_for_analyze(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "step.txt"
    file.write_text(lowered().compile().as_text())
    assert run(["compile", str(file), "-o", str(tmp_path / "runs")]) == 2
    assert f"perfscope analyze {file}" in capfd.readouterr().err


def test_options_may_follow_a_file_and_not_a_program(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, "mlir")
    context = compile_.make_context("compile", ["-q", str(file), "--target", "v5e", "--json", "report.json"])
    assert context.meta[TARGET] == ((str(file),), "script")
    assert (context.params["quiet"], context.params["target"], context.params["json_file"]) == (
        True, "v5e", "report.json"
    )  # fmt: skip
    (tmp_path / "train").write_text("import jax\n")
    for name in ("train.py", str(tmp_path / "train")):
        context = compile_.make_context("compile", [name, "--target", "v5e"])
        assert context.meta[TARGET][0] == (name, "--target", "v5e")
        assert context.params["target"] == "h100"
    assert run(["compile", str(file), "train.py", "--target", "v5e"]) == 2
    assert "unexpected extra argument" in capfd.readouterr().err.lower()


@pytest.mark.slow
def test_all_kinds_compile_to_the_same_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("gpu-nvidia")
    monkeypatch.chdir(tmp_path)
    flops = {}
    for kind, _ in KINDS:
        try:
            file = write(tmp_path, kind)
        except pytest.skip.Exception:  # jax.export without flatbuffers
            continue
        folder = tmp_path / f"runs-{kind}"
        assert run(["compile", "--target", "h100", "-o", str(folder), "-q", str(file)]) == 0
        manifest = compile_manifest.load(run_of(folder))
        (program,) = manifest.programs
        assert program.name == "jit_step"
        assert manifest.command == (file.name,)
        (loaded,) = load_all(run_of(folder))
        (compiled,) = loaded.fact(programs)
        flops[kind] = compiled.flops
    assert len(flops) >= 4
    assert len(set(flops.values())) == 1


@pytest.mark.slow
def test_a_program_of_torch_export_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    require("gpu-nvidia")
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8))
    torch.export.save(torch.export.export(model, (torch.randn(32, 64),)), tmp_path / "mlp.pt2")
    assert run(["compile", "--target", "h100", "-o", str(tmp_path / "runs"), "-q", "mlp.pt2"]) == 0
    (trace,) = load_all(run_of(tmp_path / "runs"))
    (plan,) = trace.torch_plans
    (graph,) = plan.plan.graphs
    assert len(graph.kernels) == 3  # two products, and GELU between them
