"""The terminal's report, compared whole: what a person sees is what is tested."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

import perfscope
from perfscope.analyzers.engine import analyze
from perfscope.analyzers.readers.load import load_all
from perfscope.dashboards.report.blocks import paragraphs
from perfscope.dashboards.report.renderers.text import NARROWEST
from perfscope.dashboards.report.renderers.values import FIX_LIMIT, first_sentence
from perfscope.dashboards.report.text import FIRST_FINDINGS, SCREEN, render
from perfscope.model.finding import Excerpt, Finding, Outcome, Where
from tests.report.analyses import HOSTILE_NAMES, MS, analysis, device, hostile, source

Golden = Callable[[str, str], None]
PACKAGE = Path(perfscope.__file__).parent
REPOSITORY = PACKAGE.parent


def test_one_screen(golden: Golden) -> None:
    golden("analysis.txt", render(analysis()))


def test_many_ranks_are_folded_and_ranks_are_named(golden: Golden) -> None:
    devices = tuple(device(rank, compute=160 - 30 * (rank == 37)) for rank in range(64))
    sources = tuple(source(f"traces/rank{rank}.json", rank) for rank in range(64))
    golden("ranks.txt", render(analysis(devices=devices, sources=sources)))


def test_verbose_adds_evidence_and_advice(golden: Golden) -> None:
    golden("analysis-verbose.txt", render(analysis(), verbose=True))


def test_nothing_to_say_is_said(golden: Golden) -> None:
    clean = (Outcome(rule="host_sync", status="clean"),)
    golden("clean.txt", render(analysis(sources=(source("a.json", None),), devices=(), steps=(), outcomes=clean)))


def test_all_rules_blind_is_not_clean(golden: Golden) -> None:
    blind = (Outcome(rule="host_sync", status="abstained", reason="not recorded: x"),)
    golden("abstained.txt", render(analysis(outcomes=blind)))


def test_more_findings_than_a_screen_holds_are_counted() -> None:
    findings = tuple(
        Finding(subject=str(n), title=f"finding {n}", severity="low", basis="measured", advice="", cost_ns=n,
                cost_ns_per_step=(100 - n) * MS)
        for n in range(FIRST_FINDINGS + 3)
    )  # fmt: skip
    outcomes = (Outcome(rule="host_sync", status="flagged", findings=findings),)
    shown = re.findall(r"finding (\d+)", render(analysis(outcomes=outcomes)))
    assert list(map(int, shown)) == list(range(FIRST_FINDINGS))
    assert "Findings (3 of 6)" in render(analysis(outcomes=outcomes))
    every = render(analysis(outcomes=outcomes), verbose=True)
    assert set(map(int, re.findall(r"finding (\d+)", every))) == set(range(FIRST_FINDINGS + 3))


@pytest.mark.parametrize("width", [20, 110])
@pytest.mark.parametrize("name", [*HOSTILE_NAMES, "plain"])
def test_no_name_breaks_the_width_or_steers_the_terminal(name: str, width: int) -> None:
    text = render(hostile(name), width=width)
    assert all(len(line) <= max(width, NARROWEST) for line in text.splitlines())
    assert not any(character != "\n" and ord(character) < 32 for character in text)
    assert "\x1b" not in text
    text.encode()


def test_color_is_only_there_when_asked() -> None:
    assert "\x1b[" in render(analysis(), color=True)
    assert "\x1b[" not in render(analysis(), color=False)


def test_markup_of_a_name_is_shown_and_not_obeyed() -> None:
    assert "[bold red]markup[/] :smile:" in render(hostile("[bold red]markup[/] :smile:"))


def test_several_reasons_are_a_list_and_rows_left_out_are_counted(golden: Golden) -> None:
    rows = tuple({"n": n} for n in range(25))
    finding = Finding(subject="s", title="t", severity="low", basis="measured", advice="Do it.", evidence=rows)
    outcomes = (
        Outcome(rule="a_rule", status="abstained", reason="not recorded: x"),
        Outcome(rule="b_rule", status="abstained", reason="one rank"),
        Outcome(rule="c_rule", status="flagged", findings=(finding,)),
    )
    golden("reasons.txt", render(analysis(outcomes=outcomes), verbose=True))


@pytest.mark.parametrize(
    ("path", "again"),
    [
        ("traces/a.json", "perfscope analyze -v traces/a.json"),
        ("my trace.json", "perfscope analyze -v 'my trace.json'"),
        ("/home/alice/a.json", "-v for evidence and advice"),
        ("x" * 100, "-v for evidence and advice"),
        ("a\x1b[1mb", "-v for evidence and advice"),
    ],
)
def test_the_next_command_can_be_pasted_or_is_not_offered(path: str, again: str) -> None:
    text = render(analysis(sources=(source(path),)))
    (line,) = (line for line in text.splitlines() if line.startswith("  next: "))
    assert line == f"  next: perfscope explain host_sync   {again}"


def test_no_share_no_column(golden: Golden) -> None:
    finding = Finding(subject="s", title="t", severity="low", basis="structural", advice="")
    golden("no-share.txt", render(analysis(outcomes=(Outcome(rule="r", status="flagged", findings=(finding,)),))))


def test_the_line_of_code_stands_below_its_place_and_links_to_it(tmp_path: Path) -> None:
    lines = ("def f(x):", "    y = x @ x", "    return y.item()", "", "f(1)")
    finding = Finding(
        subject="s", title="t", severity="low", basis="measured", advice="", where=Where(file="train.py", line=3),
        excerpt=Excerpt(path=str(tmp_path / "train.py"), first=1, lines=lines),
    )  # fmt: skip
    judged = analysis(outcomes=(Outcome(rule="r", status="flagged", findings=(finding,)),))
    first = render(judged).splitlines()
    assert "     > return y.item()" in first
    assert "     > 3      return y.item()" in render(judged, verbose=True).splitlines()
    assert "\x1b]8;" not in render(judged, color=True)
    linked = render(judged, color=True, links=True)
    assert "\x1b]8;" in linked
    assert (tmp_path / "train.py").as_uri() in linked
    assert "\x1b]8;" not in render(judged)


@pytest.mark.corpus
@pytest.mark.parametrize(
    "paths",
    [
        ("kineto/TraceLens__h100_qwen1.5-0.5b.json.gz",),
        ("kineto/TraceLens__b200_eager.json.gz",),
        tuple(f"kineto/astra-sim__megatron_kineto_{rank}.json.gz" for rank in range(8)),
        ("xplane/xprof__tpu_inference_2.xplane.pb.gz",),
        ("nsys_sqlite/nsys-ai__h100_2gpu_1s.sqlite.gz",),
        ("torch_mem/assignment2-systems__medium512_train.pickle.gz",),
    ],
    ids=["H100", "B200", "8 ranks", "TPU", "nsys", "snapshot"],
)
def test_the_first_screen_of_real_recordings_fits_a_small_terminal(corpus: Path, paths: tuple[str, ...]) -> None:
    judged = analyze([trace for path in paths for trace in load_all(corpus / path)])
    for width in (60, 80, 100, 160):
        lines = render(judged, width=width).splitlines()
        screen = "\n".join(lines[:SCREEN])
        assert "Findings" in screen
        assert "rule" in screen
        assert "next: perfscope explain" in screen
        shown = min(FIRST_FINDINGS, len(judged.findings()))
        assert len(re.findall(r"^  \d\. ", screen, re.MULTILINE)) == shown
        assert len(re.findall("Fix: |Fix at |To see more: ", screen)) == shown


def test_the_first_screen_of_a_cpu_program_has_its_source_lines() -> None:
    judged = analyze(load_all(REPOSITORY / "fixtures" / "cpu-attention-sdpa-item"))
    screen = render(judged).splitlines()[:SCREEN]
    begin = next(index for index, line in enumerate(screen) if line.startswith("  By source line: CPU ops"))
    assert screen[begin + 2].startswith("  perfscope/workloads/attention.py:43  1.60 ms  42.0%")
    assert any(line.startswith("  next: perfscope explain") for line in screen[begin:])
    assert render(judged).count("By source line") == render(judged, verbose=True).count("By source line") == 1


def test_the_first_screen_of_a_jax_program_has_the_lines_of_its_instructions() -> None:
    judged = analyze(load_all(REPOSITORY / "fixtures" / "advice" / "jax_promoted_to_f32"))
    screen = render(judged).splitlines()[:SCREEN]
    begin = next(index for index, line in enumerate(screen) if line.startswith("  By source line: instructions"))
    assert screen[begin + 2].split()[:5] == ["286", "ms", "79.6%", "jax_promoted_to_f32.py:20", "transpose"]
    assert not any("0.0%" in line for line in screen)


def test_source_lines_follow_a_first_screen_without_room() -> None:
    finding = Finding(
        subject="s",
        title="t",
        severity="low",
        basis="structural",
        advice="Do this. " * 2,
        where=Where(file="a.py", line=1),
    )
    judged = analyze(load_all(REPOSITORY / "fixtures" / "cpu-attention-sdpa-item"), [])
    long = tuple(replace(finding, subject=str(n), advice="Move the work " * 11) for n in range(FIRST_FINDINGS))
    text = render(replace(judged, outcomes=(Outcome(rule="host_sync", status="flagged", findings=long),)))
    assert "next: " in "\n".join(text.splitlines()[:SCREEN])
    assert text.index("next: ") < text.index("By source line")


@pytest.mark.parametrize(
    ("paragraph", "first"),
    [
        ("Free it (`gc.collect(); gc.freeze()`). Then measure.", "Free it (`gc.collect(); gc.freeze()`)"),
        ("Set `a`; then run.", "Set `a`"),
        ("Open the file `model.py", "Open the file `model.py"),
        ("Close it.", "Close it"),
    ],
)
def test_a_fix_is_cut_after_a_sentence_and_not_inside_backticks(paragraph: str, first: str) -> None:
    assert first_sentence(paragraph) == first


NAME = "encoder.layer"
"""An ordinary name in the place of a name of the program."""


def _words(node: ast.AST) -> str:
    """The longest text that an expression of constants and names makes."""
    match node:
        case ast.Constant(value=str(text)):
            return re.sub(r"\{\w*\}", NAME, text.replace(".{", ". {"))
        case ast.JoinedStr(values=parts):
            return "".join(map(_words, parts))
        case ast.FormattedValue(value=ast.JoinedStr() | ast.IfExp() as value):
            return _words(value)
        case ast.IfExp(body=body, orelse=other):
            return max(_words(body), _words(other), key=len)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _words(left) + _words(right)
    return NAME


def _advice(tree: ast.Module) -> Iterator[str]:
    """Texts of advice: values of `advice` and `fix`, tables and functions named after them, words of `_Words`."""
    is_advice = re.compile(r"advice|fix|_reads|_kept|_stays|_wait|_free|unchecked|of_\w*layers", re.IGNORECASE).search
    for node in ast.walk(tree):
        match node:
            case ast.keyword(arg=str(name), value=value) if is_advice(name):
                within: Sequence[ast.AST] = [value]
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if is_advice(name):
                within = [value]
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.AST() as value) if is_advice(name):
                within = [value]
            case ast.FunctionDef(name=name, body=body) if is_advice(name):
                within = body[isinstance(body[0], ast.Expr) :]
            case ast.Call(func=ast.Name(id="_Words"), args=[_, _, value, *_]):
                within = [value]
            case _:
                continue
        yield from (_words(text) for part in within for text in _texts(part))


def _texts(node: ast.AST) -> Iterator[ast.AST]:
    """The outermost expressions of text in a node."""
    if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp):
        yield node
        return
    for child in ast.iter_child_nodes(node):
        yield from _texts(child)


def test_no_fix_with_ordinary_names_is_cut() -> None:
    homes = [*PACKAGE.glob("analyzers/**/rules/**/*.py"), *PACKAGE.glob("plugins/*/rules/*.py"),
             PACKAGE / "analyzers/time/fixes.py", PACKAGE / "analyzers/torch_compile/guards.py"]  # fmt: skip
    texts = {text: home for home in homes for text in _advice(ast.parse(home.read_text()))}
    openings = {next((part.text for part in paragraphs(text)), ""): home for text, home in texts.items()}
    first = {first_sentence(opening): home for opening, home in openings.items()}
    assert len(first) > 200
    assert [f"{home}: {text}" for text, home in first.items() if len(text) > FIX_LIMIT] == []
