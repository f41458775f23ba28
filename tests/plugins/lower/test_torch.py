"""Programs of torch.compile with the planted questions, from recorded logs; one runs for real in the slow tests."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from perfscope.analyzers.readers import printed_graph
from perfscope.model.compile_log import CompiledKernel
from perfscope.model.errors import DataError
from perfscope.plugins.lower import inputs, lowering, pages
from perfscope.plugins.lower.command import lower
from perfscope.plugins.lower.document import Fate, Lowering
from perfscope.plugins.lower.program import Program
from perfscope.plugins.lower.torch.fates import Passage, fates_of
from perfscope.plugins.lower.torch.plan import with_reasons
from perfscope.plugins.lower.torch.stages import AFTER
from tests.conftest import REPOSITORY
from tests.plugins.ahead.compilers import require
from tests.plugins.lower.test_jax import line_of

FIXTURES = REPOSITORY / "fixtures" / "lower-torch"
PROGRAMS = Path(__file__).parent / "programs"
BLOCK, CONVOLUTION = PROGRAMS / "torch_block.py", PROGRAMS / "torch_convolution.py"


def lowered(program: Path) -> Lowering:
    """The document of the log of a program."""
    log = FIXTURES / f"{program.stem}.log.gz"
    return lowering.of(inputs.read(log), program.name, line=None, op=None)


@pytest.fixture(scope="module")
def block() -> Lowering:
    return lowered(BLOCK)


@pytest.fixture(scope="module")
def convolution() -> Lowering:
    return lowered(CONVOLUTION)


def fates(found: Lowering, what: str, program: Path, code: str) -> list[Fate]:
    """Rows of one kind at a line."""
    place = f"{program.name}:{line_of(program, code)}"
    return [fate for fate in found.fates if (fate.what, fate.place) == (what, place)]


def first_screen(found: Lowering) -> str:
    """The screen as it is printed, wide enough that no cell wraps."""
    return " ".join(pages.text(found, width=4000).split())


def test_why_a_line_runs_twice(block: Lowering, convolution: Lowering) -> None:
    (again,) = fates(block, "recomputed", BLOCK, "h = functional.gelu(self.up(h))")
    called = line_of(BLOCK, "checkpoint(self.block")
    assert again.reason == f"the backward computes it again: torch.utils.checkpoint called at torch_block.py:{called}"
    assert again.flops > 2 * 128 * 64 * 256  # the product, and the elements of gelu
    (written,) = [fate for fate in fates(block, "converted", BLOCK, "h = functional.gelu(self.up(h))")
                  if (fate.phases, fate.after) == (("recompute",), "float32")]  # fmt: skip
    assert written.reason == "gelu computes in float32 inside and returns bfloat16"  # as in the forward
    (chosen,) = fates(convolution, "recomputed", CONVOLUTION, "h = h * self.scale")
    assert "AOT autograd's partitioner" in chosen.reason
    assert again.reason in first_screen(block)
    assert chosen.reason in first_screen(convolution)


def test_a_producer_in_two_kernels(block: Lowering) -> None:
    (shared,) = fates(block, "duplicated", BLOCK, "return x + self.down(h)")
    assert (shared.times, len(shared.kernels), shared.flops) == (2, 2, 128 * 64)
    assert shared.reason in first_screen(block)


def test_a_line_in_several_kernels(block: Lowering) -> None:
    (forward,) = fates(block, "split", BLOCK, "h = functional.gelu(self.up(h))")
    assert forward.reason.startswith("2 kernels forward: addmm; ")
    assert forward.bytes == 2 * 128 * 256 * 2  # the bfloat16 product, written and read


def test_a_library_call_is_computed_once_though_its_readers_list_it() -> None:
    """Provenance names the product in the kernel that reads it, too; a name may occur in both directions."""
    forward, backward = (
        printed_graph(AFTER, "", f'''
class <lambda>(torch.nn.Module):
    def forward(self, x: "f32[64, 64][64, 1]", {given}_1: "f32[64, 64][64, 1]"):
        # File: a.py:3 in f, code: y = torch.sin(x @ w)
        mm: "f32[64, 64][64, 1]" = torch.ops.aten.mm.default(x, {given}_1)
        sin: "f32[64, 64][64, 1]" = torch.ops.aten.sin.default(mm)
        return (sin,)
''')
        for given in ("primals", "tangents")
    )  # fmt: skip
    kernels = [
        CompiledKernel(
            name="extern_kernels.mm", backend="extern", compile_id="0/0", direction="forward", nodes=("mm",)
        ),
        CompiledKernel(name="sin", backend="triton", compile_id="0/0", direction="forward", nodes=("sin", "mm")),
    ]
    passage = Passage(
        program="f", dynamo=None, joint=None, written={}, after={False: forward, True: backward},
        kernels=tuple(kernels), recomputed=frozenset(),
    )  # fmt: skip
    found = {fate.what: fate for fate in fates_of(passage)}
    assert "duplicated" not in found
    assert (found["split"].reason, found["split"].bytes) == ("2 kernels forward: mm; sin", 2 * 64 * 64 * 4)


def test_where_transposes_come_from(block: Lowering, convolution: Lowering) -> None:
    (own,) = [fate for fate in fates(block, "transposed", BLOCK, "heads = heads.permute(") if fate.by == "program"]
    assert own.reason.startswith("the program's own copy: .contiguous() of the view that permute at torch_block.py:")
    assert own.bytes == 4 * 32 * 64 * 4
    (needed,) = fates(convolution, "transposed", CONVOLUTION, "self.norm(h.permute(")
    assert needed.by == "compiler"
    assert "the op needs its operand in order, and copies the view that permute at" in needed.reason
    assert own.reason in first_screen(block)
    assert needed.reason in first_screen(convolution)


def test_why_values_are_float32(block: Lowering, convolution: Lowering) -> None:
    def widened(found: Lowering, program: Path, code: str) -> Fate:
        (fate,) = [fate for fate in fates(found, "converted", program, code)
                   if fate.after == "float32" and fate.phases == ("forward",)]  # fmt: skip
        return fate

    softmax = widened(block, BLOCK, "torch.softmax(")
    assert softmax.reason == "softmax computes in float32 inside and returns bfloat16"
    norm = widened(convolution, CONVOLUTION, "self.norm(h.permute(")
    assert norm.reason == "layer_norm computes in float32 inside and returns bfloat16"
    scale = widened(convolution, CONVOLUTION, "h * self.scale")
    kept = line_of(CONVOLUTION, "torch.sin(h)")
    assert scale.reason.startswith(f"promoted: self.scale is float32; keeps torch_convolution.py:{kept}")
    narrowed = {fate.reason for fate in block.fates if fate.what == "converted" and fate.after == "bfloat16"}
    assert "autocast: linear runs in bfloat16" in narrowed
    assert softmax.reason in first_screen(block)
    assert all(fate.reason in first_screen(convolution) for fate in (norm, scale))


def test_values_go_through_memory_also_behind_a_view(block: Lowering) -> None:
    (read,) = fates(block, "materialised", BLOCK, "torch.softmax(")
    assert read.bytes == 2 * 2 * 4 * 8 * 32 * 32  # bfloat16 weights, written and read by the product through a view
    assert read.reason == f"read at torch_block.py:{line_of(BLOCK, 'weights @ heads')}"


def test_stages_kernels_and_compile_time(block: Lowering) -> None:
    names = {stage.name: stage.ops for stage in block.stages}
    assert list(names) == [
        "FX graph (dynamo)", "joint graph (AOT autograd)", "forward graph (AOT autograd)",
        "backward graph (AOT autograd)", "after inductor's passes, forward", "after inductor's passes, backward",
        "kernels", "kernel source",
    ]  # fmt: skip
    assert all(names.values())
    layers = {part.layer for part in block.times if not part.name}
    assert {"dynamo: tracing and guards", "AOT autograd", "building kernels (C++ or Triton)"} <= layers
    assert sum(part.cold_ns or 0 for part in block.times if not part.name) == sum(
        part.cold_ns or 0 for part in block.times if part.name
    )


def test_the_path_of_a_line() -> None:
    log = FIXTURES / "torch_block.log.gz"
    number = line_of(BLOCK, "torch.softmax(")
    found = lowering.of(inputs.read(log), "block", line=f"torch_block.py:{number}", op=None)
    stages = {item.stage: item.ops for item in found.path}
    assert [op.op for op in stages["FX graph (dynamo)"]] == ["torch.softmax"]
    assert "prims.convert_element_type.default" in {op.op for op in stages["forward graph (AOT autograd)"]}
    kernels = {op.inside for op in stages["kernels"]}
    assert any("softmax" in kernel for kernel in kernels)
    assert {op.inside for op in stages["kernel source"]} & kernels


def test_an_empty_log(tmp_path: Path) -> None:
    whole = gzip.decompress((FIXTURES / "torch_block.log.gz").read_bytes()).decode()
    lines = [line for line in whole.splitlines(keepends=True) if '"str"' in line]
    (tmp_path / "trace.log").write_text("".join(lines))
    done = CliRunner().invoke(lower, [str(tmp_path / "trace.log")])
    assert isinstance(done.exception, DataError)
    assert "no compilation in this log" in str(done.exception)


@pytest.mark.slow
def test_a_program_runs_and_its_caches_are_warm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "convolution.py").write_text(CONVOLUTION.read_text())
    done = CliRunner().invoke(lower, ["-q", "--warm", "--json", "found.json", "convolution.py"])
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "found.json").read_text())
    assert any(fate["what"] == "recomputed" for fate in found["fates"])
    hits = {answer["run"]: answer["hits"] for answer in found["caches"] if answer["cache"] == "fx_graph"}
    assert hits == {"cold": 0, "warm": 1}


def test_debug_folders_of_inductor(tmp_path: Path, convolution: Lowering) -> None:
    """The graphs of the log, as TORCH_COMPILE_DEBUG=1 writes them."""
    payloads = gzip.decompress((FIXTURES / "torch_convolution.log.gz").read_bytes()).decode()
    kinds = {'"aot_forward_graph"': "model__0_forward_1.0", '"aot_backward_graph"': "model__0_backward_3.1"}
    for kind, name in kinds.items():
        head, _, rest = payloads.partition(kind)
        assert head
        body = rest.partition("\n")[2].partition("\nV")[0]
        folder = tmp_path / "run" / "torchinductor" / name
        folder.mkdir(parents=True)
        text = "\n".join(line.removeprefix("\t") for line in body.splitlines())
        (folder / "fx_graph_readable.py").write_text(text)
        (folder / "output_code.py").write_text("cpp_fused_sin_0 = async_compile.cpp_pybinding([], '''\n''')\n")
    found = lowering.of(inputs.read(tmp_path), "debug", line=None, op=None)
    again = {fate.place for fate in found.fates if fate.what == "recomputed"}
    assert again == {fate.place for fate in convolution.fates if fate.what == "recomputed"}
    assert {stage.name for stage in found.stages if stage.missing} >= {"FX graph (dynamo)", "kernels"}


def test_a_plan_has_kernels_only() -> None:
    found = lowering.of(
        inputs.read(REPOSITORY / "fixtures" / "plans-h100" / "attention-naive-compiled"), "plan", line=None, op=None
    )
    kernels = [stage for stage in found.stages if stage.name == "kernels"]
    assert all(stage.ops for stage in kernels)
    assert all("perfscope lower --target" in stage.missing for stage in found.stages if stage.name != "kernels")
    between = [fate for fate in found.fates if fate.what == "materialised"]
    assert between
    assert all(fate.bytes and fate.reason.startswith("inductor: ") for fate in between)
    assert "what runs twice or in another dtype is unknown here" in pages.text(found, width=4000)


def test_reasons_of_a_plan_are_added_to_the_rows_of_its_log() -> None:
    def row(place: str, reason: str, size: int) -> Fate:
        return Fate(what="materialised", program="f [0/0]", place=place, reason=reason, bytes=size)

    logged = Program(name="f [0/0]", stages=(), fates=(row("a.py:3", "read at a.py:4", 100),))
    pairs = (
        row("a.py:3", "inductor: no shared data; read at a.py:4", 8),
        row("a.py:3", "inductor: cannot fuse; read at a.py:5", 64),
        row("a.py:9", "inductor: numel/rnumel mismatch", 16),
    )
    planned = [Program(name="f [0/0] forward", stages=(), fates=pairs), Program(name="g [1/0] forward", stages=())]
    found = {fate.place: (fate.reason, fate.bytes) for fate in with_reasons(logged, planned).fates}
    assert found == {
        "a.py:3": ("read at a.py:4; inductor: cannot fuse", 100),
        "a.py:9": ("inductor: numel/rnumel mismatch", 16),
    }


@pytest.mark.slow
def test_a_program_for_a_gpu_that_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torch_block.py").write_text(BLOCK.read_text())
    done = CliRunner().invoke(lower, ["-q", "--target", "h100", "--json", "found.json", "torch_block.py"])
    assert done.exit_code == 0, done.output
    found = msgspec.json.decode((tmp_path / "found.json").read_bytes(), type=Lowering)
    (again,) = fates(found, "recomputed", BLOCK, "h = functional.gelu(self.up(h))")
    assert "torch.utils.checkpoint called at torch_block.py:" in again.reason
    (own,) = [fate for fate in fates(found, "transposed", BLOCK, "heads = heads.permute(") if fate.by == "program"]
    assert own.reason.startswith("the program's own copy: .contiguous()")
    between = [fate.reason for fate in found.fates if fate.what == "materialised"]
    assert any("; inductor: " in reason for reason in between)
    assert all(stage.ops for stage in found.stages)
    (code,) = [stage for stage in found.stages if stage.name == "kernel source"]
    assert "@triton.jit" in Path(code.file).read_text()
    assert not found.times
