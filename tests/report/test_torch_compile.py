"""torch.compile in all reports: the sentence, the rows, ranks side by side, logs alone, and silence where none ran."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from jsonschema import Draft202012Validator
from msgspec.structs import replace

from perfscope.analyzers.coverage import DUMPS_ALONE, LOG_ALONE
from perfscope.analyzers.engine import Analysis, analyze
from perfscope.analyzers.readers.load import load_all
from perfscope.analyzers.registry import load_rule, rule_ids
from perfscope.analyzers.sections.compile import CompileSection, RankCompile
from perfscope.dashboards.report import html_report, json_report, markdown, text
from perfscope.dashboards.report.blocks import Command
from perfscope.dashboards.report.sections.compile import compile_sections, headline
from perfscope.dashboards.report.summary import summarize
from perfscope.model.finding import Outcome
from perfscope.model.trace import RECORDED
from tests.conftest import REPOSITORY, corpus_files
from tests.report.analyses import MS, analysis, compiled, source
from tests.report.cells import rows

LOGS = corpus_files("tlparse", "*.log.gz")


def with_ranks(*changes: dict[str, object]) -> CompileSection:
    held = compiled()
    ranks = [replace(held.ranks[0], rank=n, label=f"rank {n}", **change) for n, change in enumerate(changes)]  # type: ignore[arg-type]
    return replace(held, ranks=tuple(ranks))


def log_analysis(**changes: object) -> Analysis:
    parts = {
        "sources": (msgspec.structs.replace(source("x.log"), format="torch_trace"),),
        "steps": (),
        "devices": (),
        **changes,
    }
    return analysis(compile=compiled(), **parts)


def test_one_sentence_for_the_whole() -> None:
    assert headline(compiled()) == (
        "torch.compile: 6 graphs of 1 frame, 1 graph break, 2 recompiles, 10.0 s of compiling (2.10 s of it inside "
        "the traced steps; FX graph cache: 2 hits, 4 misses)"
    )
    quiet: dict[str, object] = {
        "graphs": 1, "breaks": 0, "recompiles": 0, "eager_frames": 1, "limit_frames": 2, "in_steps_ns": None,
        "caches": {},
    }  # fmt: skip
    assert headline(with_ranks(quiet)) == (
        "torch.compile: 1 graph of 1 frame, no graph break, 1 frame in eager mode, 2 frames at the recompile limit, "
        "10.0 s of compiling"
    )
    assert headline(with_ranks({"in_steps_ns": 0, "caches": {}})).endswith("compiling (none in the traced steps)")


def test_ranks_that_are_alike_are_one_and_others_are_spread() -> None:
    alike = with_ranks({}, {"total_ns": 10_050 * MS})
    assert headline(alike).startswith("torch.compile, each of 2 ranks: 6 graphs of 1 frame,")
    assert "10.1 s of compiling" in headline(alike)
    assert "FX graph cache: 4 hits, 8 misses in all" in headline(alike)
    apart = with_ranks({}, {"graphs": 9, "total_ns": 20_000 * MS}, {})
    assert headline(apart).startswith("torch.compile, 3 ranks: 6 to 9 graphs of 1 frame, 1 graph break")
    assert "10.0 s to 20.0 s of compiling" in headline(apart)
    assert {
        "ranks 0, 2: 6 graphs of 1 frame, 1 graph break, 2 recompiles",
        "rank 1: 9 graphs of 1 frame, 1 graph break, 2 recompiles",
    } <= set(compile_sections(apart)[0].texts())
    assert not any("ranks 0" in text for text in compile_sections(alike)[0].texts())
    unnamed = replace(apart, ranks=tuple(replace(one, rank=None) for one in apart.ranks))
    assert headline(unnamed).startswith("torch.compile, 3 logs:")


def test_rows_and_sentences() -> None:
    (section,) = compile_sections(compiled())
    assert rows(section.table("")) == [{
        "frame": "forward", "at": "model/net.py:41", "compiled": "3", "graphs": "3 + 3", "ops": "20-24 + 31",
        "breaks": "1", "recompiled": "2", "FX cache": "2 hits, 4 misses", "time": "10.0 s", "share": "100.0%",
        "state": "compiled",
    }]  # fmt: skip
    assert section.texts()[:4] == (
        "compile time 10.0 s: building kernels 9.00 s, dynamo 1.00 s",
        "forward: compile time 10.0 s: building kernels 9.00 s, dynamo 1.00 s. FX graph cache: 2 hits, 4 misses; "
        "dynamo restarted 1x. cache: forward",
        "1x graph break at model/net.py:41: forward (gb0059)",
        "2x recompiled: forward (model/net.py:41), guard forward == 0.1; values 0.1, 0.3, 0.5, needed at "
        "model/net.py:43",
    )
    kernels = section.table("kernels of inductor, by time in the recording (measured)")
    assert rows(kernels) == [{
        "time": "5.00 ms", "kernel": "triton_poi_fused_forward_0", "backend": "triton", "calls": "3",
        "lines": "model/net.py:41", "ATen ops": "mul, forward",
    }]  # fmt: skip


@pytest.mark.parametrize(
    ("file", "said"),
    [("/home/alice/net.py", "~/net.py:41"), ("/home/alice/model/net.py", "model/net.py:41"), ("/net.py", "net.py:41"),
     ("", ":41")],
)  # fmt: skip
def test_a_place_is_short_and_names_no_user(file: str, said: str) -> None:
    (section,) = compile_sections(compiled(file=file))
    assert rows(section.table(""))[0]["at"] == said


def test_a_stage_below_half_a_percent_is_in_the_rest() -> None:
    held = compiled()
    assert held.detail is not None
    first, second = held.detail.stages_ns
    stages = {first: held.detail.total_ns - 4 * MS, second: 4 * MS}
    (section,) = compile_sections(replace(held, detail=replace(held.detail, stages_ns=stages)))
    assert section.texts()[0] == "compile time 10.0 s: building kernels 10.0 s, the rest 4.00 ms"


@pytest.mark.parametrize(
    ("path", "said"),
    [("run/torch_trace.log", "tlparse run/torch_trace.log"),
     ("run/x.log.gz", "gunzip -k run/x.log.gz && tlparse run/x.log"),
     ("/home/alice/my run/x.log", "tlparse ~/'my run/x.log'"), (f"/{'d' * 300}/x.log", f"tlparse /{'d' * 300}/x.log")],
)  # fmt: skip
def test_how_to_see_the_whole_log(path: str, said: str) -> None:
    held = analysis(compile=compiled(path=path))
    (section,) = compile_sections(held.compile)
    assert [block.command for block in section.blocks if isinstance(block, Command)] == [said]
    assert "tlparse" not in text.render(held)
    assert said in html_report.render(held).replace("&#x27;", "'").replace("&amp;", "&")
    assert "tlparse" in text.render(held, verbose=True)


def test_short_on_a_narrow_terminal() -> None:
    held = compiled()
    assert held.detail is not None
    long = replace(held.detail, frames=held.detail.frames * 9, break_rows=held.detail.break_rows * 9)
    short = text.render(analysis(compile=replace(held, detail=long)), width=80)
    lines = short.splitlines()
    assert max(map(len, lines)) <= 80
    begin = next(n for n, line in enumerate(lines) if line.split()[:2] == ["frame", "at"])
    assert lines.index("", begin) - begin <= 12
    assert "    and 6 more frames, which compiled for less time (-v)" in lines
    assert "    and 7 more graph breaks and recompilations (-v)" in lines
    assert "kernels of inductor" not in short
    assert "kernels of inductor" in text.render(analysis(compile=held), width=80, verbose=True)


def test_every_report_tells_and_the_comment_folds_it() -> None:
    held = analysis(compile=compiled())
    for said in (text.render(held, verbose=True), markdown.render(held), html_report.render(held)):
        assert "6 graphs of 1 frame" in said
        assert "1x graph break at model/net.py:41" in said
        assert "2x recompiled: forward" in said
        assert "3 + 3" in said
    assert "<details><summary>torch.compile: 6 graphs of 1 frame, 1 graph break" in markdown.render(held)


def test_the_page_says_of_how_many_ranks_it_speaks() -> None:
    assert "<p>Each of 2 ranks: 6 graphs of 1 frame," in html_report.render(analysis(compile=with_ranks({}, {})))
    assert "<p>6 graphs of 1 frame," in html_report.render(analysis(compile=compiled()))


def test_silence_where_nothing_was_compiled() -> None:
    held, with_compiled = analysis(), analysis(compile=compiled())
    assert summarize(held).sections == ()
    for render in (lambda one: text.render(one, verbose=True), markdown.render, html_report.render):
        assert "graph break" in render(with_compiled)
        assert "graph break" not in render(held)
    assert json_report.document(held)["compile"]["ranks"] == []


def test_what_went_wrong_is_said() -> None:
    held = analysis(compile=CompileSection(problems=("could not be summed up: KeyError: 'odd'",)))
    for said in (text.render(held), markdown.render(held), html_report.render(held)):
        assert "could not be summed up" in said
    assert not any("torch.compile" in fact for fact in summarize(held).facts)


def test_json_holds_to_its_schema_and_keeps_source_text_out() -> None:
    schema = Draft202012Validator(json.loads((REPOSITORY / "docs" / "report-schema.json").read_text()))
    written = json.loads(json_report.render(analysis(compile=compiled())))
    schema.validate(written)
    detail = written["compile"]["detail"]
    assert detail["frames"][0]["place"] == {"file": "~/proj/model/net.py", "line": 41, "function": "forward"}
    assert detail["stages_ns"] == {"kernels": 9_000 * MS, "tracing": 1_000 * MS}
    assert detail["kernels"][0]["time_ns"] == 5 * MS


def test_a_log_alone_says_nothing_of_steps_and_devices() -> None:
    summary = summarize(log_analysis())
    assert summary.facts == (headline(compiled()),)
    assert summary.headline == "x.log (torch_trace, rank 0, 120,345 records)"
    beside = log_analysis(sources=(source("x.json"), msgspec.structs.replace(source("x.log"), format="torch_trace")))
    assert "no accelerator work in it" in summarize(beside).facts
    run = log_analysis(sources=(msgspec.structs.replace(source("run"), format="run", events_read=0),))
    assert summarize(run).facts == (headline(compiled()),)


def abstained(reason: str, *rules: str, missing: tuple[str, ...] = ()) -> tuple[Outcome, ...]:
    return tuple(Outcome(rule=rule, status="abstained", reason=reason, missing=missing) for rule in rules)


def test_rules_that_do_not_concern_a_log_are_one_phrase() -> None:
    rules = abstained("no accelerator", "host_sync", "input_stall", "launch_bound")
    own = abstained("one rank", "rank_divergence")
    held = log_analysis(outcomes=(*rules, *own))
    assert summarize(held).abstained == (
        ("one rank", ("rank_divergence",)), (LOG_ALONE, ("3 rules on recordings of a run",)),
    )  # fmt: skip
    assert summarize(log_analysis(outcomes=rules[:1])).abstained == ((LOG_ALONE, ("host_sync",)),)


def test_dumps_of_the_flight_recorder_alone_hold_nothing_of_the_other_rules() -> None:
    rules = abstained("no accelerator", "host_sync", "graph_break", "launch_bound")
    own = abstained("one rank's dump", "hung_collective")
    dumps = tuple(
        msgspec.structs.replace(source(f"dump_{rank}", rank=rank), format="flight_recorder") for rank in (0, 1)
    )
    held = replace(analysis(outcomes=(*rules, *own)), sources=dumps, steps=(), devices=())
    summary = summarize(held)
    assert summary.facts == ()
    assert summary.abstained == (
        ("one rank's dump", ("hung_collective",)), (DUMPS_ALONE, ("3 rules on recordings of a run",)),
    )  # fmt: skip


def test_rules_judge_what_they_need() -> None:
    rules = [load_rule(rule) for rule in rule_ids()]
    assert all("compile_log" in rule.judges for rule in rules if "compile_log" in rule.needs)
    assert all("programs" in rule.judges for rule in rules if "hlo" in rule.needs or rule.plan is not None)
    assert all("flight_record" in rule.judges for rule in rules if "flight_record" in rule.needs)


@pytest.mark.parametrize("reason", ["nothing was compiled", f"all sources: not recorded: {RECORDED['compile_log']}"])
def test_rules_on_torch_compile_are_one_phrase_where_it_compiled_nothing(reason: str) -> None:
    held = analysis(
        outcomes=abstained(reason, "graph_break", "compile_time", "eager_fallback", missing=("compile_log",))
    )
    assert summarize(held).abstained == ((reason, ("3 rules on torch.compile",)),)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("dump/a.txt, dump/b.txt, dump/c.txt", "dump, 3 files (hlo_text, 3 compiled programs, 120,345 instructions)"),
        ("a/x.txt, b/y.txt", "a/x.txt and 1 more (hlo_text, 3 compiled programs, 120,345 instructions)"),
        ("dump", "dump (hlo_text, 3 compiled programs, 120,345 instructions)"),
    ],
)
def test_files_that_are_one_source_are_named_by_what_they_share(path: str, said: str) -> None:
    held = analysis(sources=(msgspec.structs.replace(source(path, None), format="hlo_text", programs=3),))
    assert summarize(held).headline == said


def test_a_folder_that_is_too_long_keeps_its_end() -> None:
    deep = ", ".join(f"/{'d' * 300}/models/dump/{n}.txt" for n in range(40))
    held = analysis(sources=(msgspec.structs.replace(source(deep, None), format="hlo_text", programs=40),))
    assert summarize(held).headline.startswith("…/models/dump, 40 files (")


@pytest.mark.corpus
@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name)
def test_logs_of_the_corpus(path: Path) -> None:
    schema = Draft202012Validator(json.loads((REPOSITORY / "docs" / "report-schema.json").read_text()))
    held = analyze(load_all(path))
    schema.validate(json.loads(json_report.render(held)))
    short = text.render(held, width=80)
    assert max(map(len, short.splitlines())) <= 80
    (compile_fact,) = summarize(held).facts  # and none about missing parts
    assert compile_fact.startswith("torch.compile: ")
    corrupt = held.compile.detail.corrupt if held.compile.detail is not None else 0
    assert (corrupt > 0) == ("corrupt" in short)


@pytest.mark.corpus
def test_ranks_of_one_job_of_the_corpus(corpus: Path) -> None:
    traces = [trace for path in LOGS if "rank" in path.name for trace in load_all(path)]
    held = analyze(traces)
    assert [one.rank for one in held.compile.ranks] == [0, 1, 2, 3]
    assert summarize(held).facts[0].startswith("torch.compile, each of 4 ranks: 4 graphs of 1 frame, no graph break")


def test_a_rank_is_told_by_its_counts() -> None:
    (rank,) = compiled().ranks
    assert isinstance(rank, RankCompile)
    assert rank.counts() == (1, 3, 6, 1, 2, 0, 0)
