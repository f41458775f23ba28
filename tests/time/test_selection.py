"""A part of a recording: steps have the account of the whole, a stretch sums to its length, other ranks stay shut."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from perfscope.__main__ import run
from perfscope.analyzers.engine import analyze
from perfscope.analyzers.memory.holders import memory_holders
from perfscope.analyzers.readers import load as loading
from perfscope.analyzers.readers.load import load_all
from perfscope.analyzers.selection import Selection, parse_selection, part_of
from perfscope.analyzers.time import account_windows, device_busy, step_accounts, step_windows
from perfscope.analyzers.time.account import check_step_accounts
from perfscope.analyzers.time.host_account import host_account
from perfscope.model.errors import DataError, UsageError
from perfscope.model.intervals import covered
from perfscope.model.trace import Trace
from tests.build import TraceBuilder
from tests.time.test_step_work import DISPATCH, op, read, work_of

RECORDED = (
    "kineto/HolisticTraceAnalysis__nccl_data.json.gz",
    "kineto/torchrec__sst_long_a2a_optimizer_4_44237__rank2.json.gz",
    "kineto/param__linear_kineto.json.gz",
    "kineto/ao__quantize_vit_bfloat16.json.gz",
    pytest.param("nsys_jax/JAX-Toolbox__maxtext_fsdp4_test_data.zip", marks=pytest.mark.slow),
    "xplane/xprof__tpu_inference_2.xplane.pb.gz",
)
"""Steps that are recorded, or lie between optimizer steps, repeated ranges, or executions."""


@pytest.fixture(params=RECORDED)
def whole(request: pytest.FixtureRequest, corpus: Path) -> Trace:
    traces = load_all(corpus / request.param)
    return next(trace for trace in traces if trace.fact(account_windows).numbers)


def test_steps_have_the_account_of_the_whole_recording(whole: Trace) -> None:
    numbers = sorted(whole.fact(account_windows).numbers)
    first = numbers[len(numbers) // 2]
    part = part_of(whole, Selection(steps=(first, first + 2)))
    part.check()
    check_step_accounts(part)
    chosen = tuple(number for number in numbers if first <= number < first + 2)
    assert tuple(sorted(part.fact(step_windows).numbers.tolist())) == chosen
    accounts = {account.device: account for account in whole.fact(step_accounts)}
    assert part.fact(step_accounts)
    for mine in part.fact(step_accounts):
        rows = [accounts[mine.device].numbers.index(number) for number in mine.numbers]
        for cause, times in accounts[mine.device].causes_ns.items():
            assert mine.causes_ns[cause] == tuple(times[row] for row in rows), cause
    if len(numbers) > 2:
        assert sum(map(len, part.rows.values())) < sum(map(len, whole.rows.values()))


def test_a_stretch_of_time_sums_to_its_length(whole: Trace) -> None:
    windows, begin = whole.fact(account_windows), whole.span_ns()[0]
    middle = len(windows.starts) // 2
    quarter = int(windows.ends[middle] - windows.starts[middle]) // 4
    low, high = int(windows.starts[middle]) + quarter, int(windows.ends[middle]) - quarter
    part = part_of(whole, Selection(time_ns=(low - begin, high - begin)))
    part.check()
    check_step_accounts(part)
    assert part.span_ns() == (low, high)
    assert all(account.whole_ns == high - low for account in part.fact(step_accounts))
    starts, ends = np.array([low]), np.array([high])
    for device, busy in whole.fact(device_busy).items():
        assert part.fact(device_busy)[device].total() == int(covered(busy, starts, ends)[0])


def test_no_rule_breaks_on_a_part(whole: Trace) -> None:
    number = sorted(whole.fact(account_windows).numbers)[0]
    outcomes = analyze(part_of(whole, Selection(steps=(number, number + 1))))
    assert not [outcome.reason for outcome in outcomes if "failed" in (outcome.reason or "")]


def test_the_host_has_the_account_of_the_whole(corpus: Path) -> None:
    (whole,) = load_all(corpus / RECORDED[0])
    account = whole.fact(host_account)
    assert account is not None
    number = account.numbers[1]
    mine = part_of(whole, Selection(steps=(number, number + 1))).fact(host_account)
    assert mine is not None
    assert mine.parts_ns == {part: (times[1],) for part, times in account.parts_ns.items()}


def test_memory_that_was_allocated_before_is_held(corpus: Path) -> None:
    (whole,) = load_all(corpus / "kineto/TraceLens__h100_qwen1.5-0.5b.json.gz")
    begin, end = whole.span_ns()
    part = part_of(whole, Selection(time_ns=((end - begin) // 2, None)))
    (ours, *_), (all_of_it, *_) = part.fact(memory_holders), whole.fact(memory_holders)
    times = np.linspace(begin + (end - begin) * 3 // 5, end - 1, 20).astype(np.int64)
    assert ours.timeline.unseen_bytes == all_of_it.timeline.unseen_bytes
    assert ours.timeline.live().at(times).tolist() == all_of_it.timeline.live().at(times).tolist()


def two_steps() -> Trace:
    """The kernel of step 0 runs 20 us into step 1, whose own is launched there."""
    build = TraceBuilder()
    for number in (0, 1):
        start = 100.0 * number
        build.op("aten::mm", start + 5, start + 20, external_id=number + 1)
        build.launched("gemm", start + 10, start + 60, start + 120, correlation=number + 1, external_id=number + 1)
        build.step(number, start, start + 100)
    return build.build()


def test_work_in_flight_counts_and_keeps_its_launch() -> None:
    part = part_of(two_steps(), Selection(time_ns=(100_000, 200_000)))
    assert part.kernels["start_ns"].tolist() == [60_000, 160_000]
    assert part.calls["start_ns"].tolist() == [10_000, 110_000], "that of the first kernel began before the part"
    assert part.slices["name"].tolist() == ["aten::mm", "aten::mm"]
    (account,) = part.fact(step_accounts)
    assert account.causes_ns["compute"] == (20_000 + 40_000,)
    assert part.fact(device_busy)[0].total() == 20_000 + 40_000


def test_a_step_of_a_part_has_the_work_that_was_launched_in_it() -> None:
    part = part_of(two_steps(), Selection(steps=(1, 2)))
    assert part.kernels["start_ns"].tolist() == [160_000]
    (account,) = part.fact(step_accounts)
    assert account.causes_ns["compute"] == (60_000,)
    assert part.source.part == "step 1 of the recorded 0 to 1 (100 us to 220 us of 220 us)"


def test_steps_that_only_dispatch_are_cut_at_their_completions(tmp_path: Path) -> None:
    whole = read(tmp_path, python=DISPATCH, pool=[op(5, 100, run=7), op(110, 200, run=8), op(200, 290, run=9)])
    part = part_of(whole, Selection(steps=(3, 4)))
    check_step_accounts(part)
    assert work_of(part).span_ns == 100_000
    (account,), (every,) = part.fact(step_accounts), whole.fact(step_accounts)
    assert account.causes_ns == {cause: (times[1],) for cause, times in every.causes_ns.items()}
    assert [(step.number, step.duration_ns) for step in analyze(part).steps] == [(3, 100_000)]


@pytest.mark.parametrize(
    ("selection", "said"),
    [
        (Selection(steps=(7, 9)), "the recording has steps 0 to 1"),
        (Selection(time_ns=(10**9, None)), "the recording ends after"),
    ],
)
def test_what_is_not_there_is_told(selection: Selection, said: str) -> None:
    with pytest.raises(DataError, match=said):
        part_of(two_steps(), selection)


@pytest.mark.parametrize(
    ("steps", "ranks", "time"),
    [("5", None, None), (":", None, None), ("7:5", None, None), ("-1:5", None, None), (None, "1,,2", None),
     (None, "5-3", None), (None, "0-99999999999", None), (None, None, "3"), (None, None, "2s:1s"),
     (None, None, "1h:2h"), ("1:2", None, "1s:2s")],
)  # fmt: skip
def test_what_says_nothing_is_refused(steps: str | None, ranks: str | None, time: str | None) -> None:
    with pytest.raises(UsageError):
        parse_selection(steps, ranks, time)


def test_options() -> None:
    selection = parse_selection("20:", "0,3-5", None)
    assert (selection.steps, selection.ranks) == ((20, None), {0, 3, 4, 5})
    assert parse_selection(None, None, "1.5ms:2").time_ns == (1_500_000, 2_000_000_000)


@pytest.fixture
def job(corpus: Path, tmp_path: Path) -> Path:
    for file in (corpus / "kineto").glob("torchrec__sst_long*"):
        shutil.copy(file, tmp_path)
    return tmp_path


def test_files_of_other_ranks_are_not_opened(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = []
    original = loading.reader_of
    monkeypatch.setattr(loading, "reader_of", lambda path: opened.append(path.name) or original(path))
    assert run(["analyze", str(job), "--ranks", "1,3", "--steps", "5:6", "--jobs", "1", "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [source["rank"] for source in report["sources"]] == [1, 3]
    assert all(source["part"].startswith("step 5 of the recorded 4 to 6") for source in report["sources"])
    assert not [name for name in opened if "rank0" in name or "rank2" in name]
    assert [name for name in opened if "rank1" in name]


def test_a_rank_that_only_the_content_tells(job: Path) -> None:
    for number, file in enumerate(sorted(job.iterdir())):
        document = json.loads(gzip.decompress(file.read_bytes()))
        document["distributedInfo"] = {"rank": number, "world_size": 4, "backend": "nccl"}
        (job / f"trace{'abcd'[number]}.json").write_text(json.dumps(document))
        file.unlink()
    loaded = loading.load_paths([job], frozenset({2}))
    assert [trace.source.rank for trace in loaded.traces] == [2]
    with pytest.raises(UsageError, match="rank 9"):
        loading.load_paths([job], frozenset({9}))


def test_sides_of_a_comparison_are_cut_alike(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(corpus / RECORDED[0])
    assert run(["compare", file, file, "--steps", "1:2"]) in (0, 4)
    assert run(["query", file, "select count(*) as n from kernels", "--format", "json", "--time", "0s:1ms"]) == 0
    assert capsys.readouterr()
