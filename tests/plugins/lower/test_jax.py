"""JAX programs with planted questions: why a line runs twice, where a transpose comes from, why a value is float32."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from perfscope.plugins.lower import compile_time, inputs, lowering, pages
from perfscope.plugins.lower.capture import run_program
from perfscope.plugins.lower.command import lower
from perfscope.plugins.lower.document import Fate, Lowering
from perfscope.plugins.lower.xla.passes import passes_of
from tests.conftest import REPOSITORY

jax = pytest.importorskip("jax")

PROGRAMS = Path(__file__).parent / "programs"
DECODER, ATTENTION = PROGRAMS / "jax_decoder.py", PROGRAMS / "jax_attention.py"
TWO = f"""
import pathlib, runpy
for name in ({DECODER.name!r}, {ATTENTION.name!r}):
    runpy.run_path(str(pathlib.Path(__file__).with_name(name)))
"""


def line_of(program: Path, code: str) -> int:
    """Number of the only line of a program with a piece of code."""
    (number,) = [number for number, line in enumerate(program.read_text().splitlines(), 1) if code in line]
    return number


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both programs, run in one process."""
    here = tmp_path_factory.mktemp("lower")
    (here / "two.py").write_text(TWO)
    for program in (DECODER, ATTENTION):
        shutil.copy(program, here)
    assert run_program(here / "run", "jax", (str(here / "two.py"),), module=False, warm=False, limit_s=300) == ""
    return here / "run"


@pytest.fixture(scope="module")
def whole(folder: Path) -> Lowering:
    return lowering.of(inputs.read(folder), "two.py", line=None, op=None)


def fates(found: Lowering, what: str, program: Path, code: str) -> list[Fate]:
    """Rows of one kind at a line."""
    wanted = f"{program.name}:{line_of(program, code)}"
    return [fate for fate in found.fates if fate.what == what and fate.place.endswith(wanted)]


PROGRAMS_OF = {DECODER: ("jit_step",), ATTENTION: ("jit_attend", "jit_moments")}


def first_screen(found: Lowering, program: Path) -> str:
    """The screen of one of the programs as it is printed, wide enough that no cell wraps."""
    own = replace(found, fates=tuple(fate for fate in found.fates if fate.program in PROGRAMS_OF[program]))
    return " ".join(pages.text(own, width=4000).split())


def test_a_checkpointed_line_runs_again(whole: Lowering) -> None:
    (again,) = fates(whole, "recomputed", DECODER, "h = jnp.tanh(")
    assert again.times == 6  # three layers, forward and again
    assert again.flops >= 3 * 2 * 128 * 64 * 256
    called = line_of(DECODER, "jax.checkpoint(layer)")
    assert f"3 runs forward, 3 again in the backward: jax.checkpoint called at jax_decoder.py:{called}" in again.reason
    assert again.reason in first_screen(whole, DECODER)


def test_a_producer_in_several_kernels(whole: Lowering) -> None:
    (shared,) = fates(whole, "duplicated", ATTENTION, "centred = x * x - 3.0")
    assert shared.times == len(shared.kernels) == 2
    assert shared.flops == 2 * 256 * 256  # the product and the difference, once more
    assert shared.reason in first_screen(whole, ATTENTION)


def test_a_line_in_several_kernels(whole: Lowering) -> None:
    (parts,) = fates(whole, "split", ATTENTION, "return jnp.sum(centred, 0), jnp.max(centred, 1)")
    assert parts.times == len(parts.kernels) == 2
    assert "reduce_sum" in parts.reason
    assert "reduce_max" in parts.reason
    assert parts.reason in first_screen(whole, ATTENTION)
    assert not fates(whole, "split", ATTENTION, "centred = x * x - 3.0")  # both kernels compute all of it


def test_where_transposes_come_from(whole: Lowering) -> None:
    own = fates(whole, "transposed", DECODER, "heads = jnp.transpose(")
    assert own
    assert all(fate.by == "program" and "the program's own transpose" in fate.reason for fate in own)
    added = fates(whole, "transposed", ATTENTION, "scores = jax.lax.dot_general(q, k")
    assert added
    assert all(fate.by == "compiler" and "XLA (layout-assignment)" in fate.reason for fate in added)
    assert all(fate.reason in first_screen(whole, DECODER) for fate in own)
    assert all(fate.reason in first_screen(whole, ATTENTION) for fate in added)


def test_why_values_are_float32(whole: Lowering) -> None:
    (asked,) = [fate for fate in fates(whole, "converted", DECODER, "wide = x.astype(jnp.float32)")
                if (fate.after, fate.by) == ("f32", "program")]  # fmt: skip
    kept = line_of(DECODER, "jnp.mean(wide")
    assert asked.reason.startswith(f"written at this line; keeps jax_decoder.py:{kept}")
    (promoted,) = [fate for fate in fates(whole, "converted", ATTENTION, "scores * temperature")
                   if fate.by == "program"]  # fmt: skip
    assert promoted.reason.startswith("promoted: temperature is f32")
    by_xla = [fate for fate in whole.fates if fate.what == "converted" and fate.by == "compiler"]
    assert any("float-normalization-bf16" in fate.reason for fate in by_xla)
    assert asked.reason in first_screen(whole, DECODER)
    assert promoted.reason in first_screen(whole, ATTENTION)


def test_stages_and_compile_time(whole: Lowering) -> None:
    sizes = {stage.name: stage.ops for stage in whole.stages if stage.program == "jit_step"}
    assert list(sizes) == ["jaxpr", "StableHLO", "HLO before optimization", "HLO after each pass",
                           "HLO after optimization", "kernels", "kernel code"]  # fmt: skip
    assert all(sizes.values())
    functions = {(part.function, part.layer) for part in whole.times if not part.name}
    assert {("step", "tracing"), ("step", "lowering to StableHLO")} <= functions
    passes = {part.name for part in whole.times if part.layer == "XLA passes"}
    assert {"algsimp", "layout-assignment"} <= passes
    whole_ns = sum(part.cold_ns or 0 for part in whole.times if part.layer.startswith("XLA: compile"))
    inside_ns = sum(part.cold_ns or 0 for part in whole.times if part.layer in ("XLA passes", "XLA code generation"))
    assert 0 < inside_ns <= whole_ns
    (cache,) = whole.caches
    assert (cache.run, cache.hits) == ("cold", 0)
    assert cache.misses


def test_the_path_of_a_line(folder: Path) -> None:
    number = line_of(DECODER, "wide = x.astype(jnp.float32)")
    found = lowering.of(inputs.read(folder), "two.py", line=f"jax_decoder.py:{number}", op=None)
    stages = {item.stage: item.ops for item in found.path if item.program == "jit_step"}
    assert {op.op for op in stages["jaxpr"]} >= {"convert_element_type"}
    assert {op.op for op in stages["StableHLO"]} >= {"convert"}
    assert "recompute" in {op.phase for op in stages["HLO before optimization"]}
    inside = {op.inside for op in stages["HLO after optimization"] if op.inside}
    assert inside & {op.text.partition(":")[0] for op in stages["kernels"]}
    assert all(fate.place == f"jax_decoder.py:{number}" for fate in found.fates)
    by_name = lowering.of(inputs.read(folder), "two.py", line=None, op="dot_general")
    assert {item.stage for item in by_name.path} >= {"jaxpr", "StableHLO", "HLO after optimization"}


def test_json_html_and_markdown(folder: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(lower, [str(folder), "--json", str(tmp_path / "a.json"), "-o", str(tmp_path / "a.html")])
    assert done.exit_code == 0, done.output
    written = json.loads((tmp_path / "a.json").read_text())
    assert written["schema"] == "perfscope.lower/1"
    schema = json.loads((REPOSITORY / "docs" / "lower-schema.json").read_text())
    pytest.importorskip("jsonschema").validate(written, schema)
    page = (tmp_path / "a.html").read_text()
    assert "Lines that run again" in page
    assert CliRunner().invoke(lower, [str(folder), "-q", "-o", str(tmp_path / "a.md")]).exit_code == 0
    assert "Lines that run again" in (tmp_path / "a.md").read_text()


def damaged(tmp_path: Path, folder: Path) -> Iterator[tuple[str, list[str], str]]:
    """Bad input: name, arguments, piece of the message."""
    compiled = next((folder / "cold" / "xla").glob("*jit_step.cpu_after_optimizations.txt"))
    cut = tmp_path / "module_0001.jit_step.cpu_after_optimizations.txt"
    cut.write_text(compiled.read_text()[: compiled.stat().st_size // 2])
    yield "truncated", [str(cut)], str(cut)
    (tmp_path / "empty").mkdir()
    yield "empty folder", [str(tmp_path / "empty")], "an empty folder"
    (tmp_path / "empty.txt").write_text("")
    yield "empty file", [str(tmp_path / "empty.txt")], "no program that a compiler made"
    yield "absent", [str(tmp_path / "absent.hlo.pb")], "absent.hlo.pb"
    yield "no such line", [str(folder), "--line", "two.py:99999"], "no stage has line two.py:99999"


def test_bad_input_is_one_line(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from perfscope.model.errors import PerfscopeError

    monkeypatch.chdir(tmp_path)
    for name, arguments, said in damaged(tmp_path, folder):
        done = CliRunner().invoke(lower, arguments)
        assert isinstance(done.exception, PerfscopeError), name
        assert done.exception.exit_code == 4, name
        assert said in str(done.exception), name
        assert "\n" not in str(done.exception), name


def test_a_program_that_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from perfscope.model.errors import DataError

    monkeypatch.chdir(tmp_path)
    (tmp_path / "idle.py").write_text("import jax\nprint(jax.__version__)\n")
    done = CliRunner().invoke(lower, ["-q", "idle.py"])
    assert isinstance(done.exception, DataError)
    assert "idle.py: compiled nothing with jax" in str(done.exception)


def test_a_program_for_eight_gpus_names_its_exchanges() -> None:
    found = lowering.of(
        inputs.read(REPOSITORY / "fixtures" / "programs-h100" / "transformer-sharding"), "sharding", line=None, op=None
    )
    added = [fate for fate in found.fates if fate.what == "resharded"]
    assert {fate.reason.split(" ")[0] for fate in added} >= {"all-gather", "all-reduce"}
    assert all(fate.by == "compiler" and fate.bytes and "added by the partitioner" in fate.reason for fate in added)
    assert {stage.name for stage in found.stages if stage.missing} >= {"jaxpr", "HLO before optimization"}


def test_pass_times_of_xla_count_once() -> None:
    record = 'pass_metadata {{\n  pass_name: "{}"\n  start_timestamp_usec: {}\n  end_timestamp_usec: {}\n}}\n'
    text = record.format("outer", 1000, 1100) + record.format("algsimp", 1020, 1050) + record.format("cse", 1060, 1070)
    spent = {name: part.ns for (_, _, name), part in compile_time.pass_metadata(text, "step").items()}
    assert spent == {"outer": 60_000, "algsimp": 30_000, "cse": 10_000}


def test_the_pass_that_adds_or_removes_an_instruction(tmp_path: Path) -> None:
    names = ("pipeline-start", "algsimp", "layout-assignment", "fusion")
    bodies = (
        "  %a = f32[8]{0} add(%x, %y)\n  %c = f32[4]{0} constant(1)",
        "  %a = f32[8]{0} add(%x, %y)\n  %t = f32[2,4]{0,1} copy(%x)",
        "  %a = f32[8]{0} add(%x, %y)\n  ROOT %copy.1 = f32[8]{0} copy(%a)",
        "  %a.clone = f32[8]{0} add(%x, %y)\n  %copy.2 = f32[8]{0} copy(%a)\n  %copy.3 = f32[8]{0} copy(%a)",
    )
    for number, (name, body) in enumerate(zip(names, bodies, strict=True)):
        (tmp_path / f"module_0001.jit_f.{number:04}.some.after_{name}.before_next.txt").write_text(f"{body}\n")
    passes = passes_of(tmp_path, "module_0001.jit_f")
    assert passes.adder("copy", "f32", 8) == "algsimp"  # the two copies of fusion are no addition
    assert passes.adder("copy", "f32", 8, "{0}") == "layout-assignment"
    assert passes.adder("add", "f32", 8) == ""  # there from the start
    assert passes.remover(["c"]) == "algsimp"
    assert passes.remover(["t"]) == "layout-assignment"
    assert passes.remover(["a"]) == ""  # fusion renamed it


def test_a_line_is_merged_only_if_its_forward_is_left(tmp_path: Path) -> None:
    """XLA keeps `sin` of line 1 once, and replaces line 2 by it: the compiled program does not have line 2."""

    def sines(phases: str, line: int) -> str:
        names = {"forward": "jvp()", "again": "transpose(jvp())/checkpoint/rematted_computation"}
        return "".join(
            f"  {phase}.{line} = f32[64]{{0}} sine(x), "
            f'metadata={{op_name="jit(f)/{names[phase]}/sin" source_file="a.py" source_line={line}}}\n'
            for phase in phases.split()
        )

    bodies = {"before": sines("forward again", 1) + sines("forward again", 2), "cpu_after": sines("forward", 1)}
    for name, body in bodies.items():
        head = f"HloModule jit_f, is_scheduled={str(name == 'cpu_after').lower()}\n\nENTRY main {{\n"
        text = f"{head}  x = f32[64]{{0}} parameter(0)\n{body}  ROOT r = (f32[64]{{0}}) tuple(forward.1)\n}}\n"
        (tmp_path / f"module_0001.jit_f.{name}_optimizations.txt").write_text(text)
    found = lowering.of(inputs.read(tmp_path), "f", line=None, op=None)
    assert [fate.place for fate in found.fates if fate.what == "merged"] == ["a.py:1"]


def test_programs_of_one_name_have_their_own_stablehlo(tmp_path: Path) -> None:
    (tmp_path / "jax").mkdir()
    for number, op in enumerate(("sine", "cosine")):
        text = (
            f"HloModule jit_f\n\nENTRY main {{\n  x = f32[64]{{0}} parameter(0)\n  ROOT y = f32[64]{{0}} {op}(x)\n}}\n"
        )
        (tmp_path / f"module_{3 * number:04}.jit_f.before_optimizations.txt").write_text(text)
        (tmp_path / "jax" / f"jax_ir{number:04}_jit_f_compile.mlir").write_text(f"  %0 = stablehlo.{op} %arg0\n")

    def ops(stage: str) -> list[str]:
        stages = [held for program in inputs.read(tmp_path).programs for held in program.stages]
        return [op.op for found in stages if found.name == stage for op in found.ops]

    assert ops("StableHLO") == ops("HLO before optimization") == ["sine", "cosine"]
    (tmp_path / "jax" / "jax_ir0001_jit_f_compile.mlir").unlink()
    assert ops("StableHLO") == []


def test_dumps_that_end_early_have_a_note(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not inputs.read(folder).remarks
    monkeypatch.setattr(inputs, "MOST_PROGRAMS", 2)
    assert inputs.read(folder).remarks == ["only the first 2 programs have dumps; later programs are missing here"]


def test_what_a_checkpoint_repeats_is_not_a_copy_of_xla(tmp_path: Path) -> None:
    """Two fusions with the same `sin`: of one phase it was fused into both, of a recomputation it runs again."""

    def found(phase: str) -> list[str]:
        text = "HloModule jit_f, is_scheduled=true\n\n"
        for number, scope in enumerate(("jvp()", phase)):
            name = f'metadata={{op_name="jit(f)/{scope}/sin" source_file="a.py" source_line=1}}'
            text += f"body.{number} {{\n  p.{number} = f32[64]{{0}} parameter(0)\n"
            text += f"  s.{number} = f32[64]{{0}} sine(p.{number}), {name}\n"
            text += f"  ROOT n.{number} = f32[64]{{0}} negate(s.{number})\n}}\n\n"
        text += "ENTRY main {\n  x = f32[64]{0} parameter(0)\n"
        for number in (0, 1):
            text += f"  f.{number} = f32[64]{{0}} fusion(x), kind=kLoop, calls=body.{number}\n"
        file = tmp_path / "module_0001.jit_f.cpu_after_optimizations.txt"
        file.write_text(text + "  ROOT r = (f32[64]{0}, f32[64]{0}) tuple(f.0, f.1)\n}\n")
        return [fate.what for fate in lowering.of(inputs.read(file), "f", line=None, op=None).fates if fate.place]

    assert "duplicated" in found("jvp()")
    again = found("transpose(jvp())/checkpoint/rematted_computation")
    assert "recomputed" in again
    assert "duplicated" not in again
