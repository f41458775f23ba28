"""Sampled stacks: laid over the time without recorded ops, and what rules make of them."""

from __future__ import annotations

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.registry import load_rule
from perfscope.analyzers.time.account import check_step_accounts, step_accounts
from perfscope.analyzers.time.samples import nearest_samples, sampled_site
from perfscope.model.documents.stacks import COLLECTING, SampledLoader
from perfscope.model.finding import Finding
from perfscope.model.intervals import union
from perfscope.model.trace import Trace
from tests.build import EVERYTHING, TraceBuilder

HOST_BOUND, INPUT_STALL = load_rule("host_bound"), load_rule("input_stall")

LOOP = "train.py(30): main"
LOADER = "site-packages/torch/utils/data/dataloader.py(9): __next__"
FETCH = f"{LOADER} > site-packages/torch/utils/data/_utils/fetch.py(54): fetch"


def host_loop(work_us: float = 17_000, steps: int = 2) -> TraceBuilder:
    """Steps of 20 ms without an accelerator: work of the host's own, then an op."""
    b = TraceBuilder()
    for number in range(steps):
        begin = 20_000 * number
        b.step(number, begin, begin + 20_000)
        b.op("aten::mm", begin + work_us, begin + 20_000)
    return b


def only(trace: Trace, rule: object = HOST_BOUND) -> Finding:
    (finding,) = judge(rule, trace).findings  # type: ignore[arg-type]
    return finding


def test_a_stretch_is_divided_among_its_samples() -> None:
    b = host_loop()
    b.sample(f"{LOOP} > train.py(12): tokenize", 4_000)
    b.sample(f"{LOOP} > train.py(20): log", 8_000)
    b.sample(f"{LOOP} > train.py(20): log", 30_000)
    trace = b.build()
    pieces = nearest_samples(trace, 0, union([0, 20_000_000, 50_000_000], [17_000_000, 37_000_000, 60_000_000]))
    assert pieces.starts.tolist() == [0, 6_000_000, 20_000_000]
    assert pieces.ends.tolist() == [6_000_000, 17_000_000, 37_000_000]
    assert pieces.samples.tolist() == [0, 1, 2], "a stretch without a sample is nobody's"


def test_a_late_sample_gets_the_time_by_which_it_was_late() -> None:
    b = host_loop()
    b.sample(f"{LOOP} > train.py(12): tokenize", 1_000)
    b.sample(f"{LOOP} > {COLLECTING}", 15_000, delay=12_000)
    pieces = nearest_samples(b.build(), 0, union([0], [17_000_000]))
    assert pieces.ends.tolist() == [2_000_000, 17_000_000]


@pytest.mark.parametrize(
    ("stack", "line", "function"),
    [
        (f"{LOOP} > train.py(12): tokenize > str", 12, "tokenize"),
        (f"{LOOP} > lib/python3.12/json/encoder.py(200): encode", 30, "main"),
        (f"{LOOP} > site-packages/transformers/tokenization.py(7): encode", 30, "main"),
        ("site-packages/lightning/loop.py(5): run > site-packages/torch/nn/module.py(1): call", 5, "run"),
        (f"{LOOP} > train.py(14): Text.make.<locals>.<listcomp>", 14, "Text.make"),
    ],
)
def test_the_site_of_a_stack_is_the_users_innermost_line(stack: str, line: int, function: str) -> None:
    b = host_loop()
    b.sample(stack, 5_000)
    trace = b.build()
    site = sampled_site(trace, int(trace.rows["samples"]["frame"][0]))
    assert (site.line, site.function, site.exact) == (line, function, True)


def test_the_hosts_work_has_the_function_and_line_that_ran() -> None:
    b = host_loop()
    for number in (0, 1):
        for at in (3_000, 7_000, 11_000):
            b.sample(f"{LOOP} > train.py(12): tokenize > str", 20_000 * number + at, step=number)
        b.sample(f"{LOOP} > train.py(20): log", 20_000 * number + 15_000, step=number)
    finding = only(b.build())
    assert (finding.subject, finding.where.file, finding.where.line) == ("host work", "train.py", 12)
    assert finding.evidence[0]["line_is"] == "the line that ran"
    assert [row["site"] for row in finding.evidence] == ["train.py:12", "train.py:20"]
    assert sum(int(str(row["idle_ns"])) for row in finding.evidence) == finding.cost_ns


@pytest.mark.parametrize(
    ("stack", "cpu", "subject"),
    [
        (f"{LOOP} > train.py(12): wait_a_bit > time.sleep", 0, "sleeping"),
        (f"{LOOP} > train.py(12): pull > queue.get", 0, "sleeping"),
        (f"{LOOP} > train.py(12): pull > queue.get", 4_000, "host work"),
        (f"{LOOP} > train.py(12): make > {COLLECTING}", 4_000, "garbage collection"),
        (f"{LOOP} > train.py(12): keep > site-packages/torch/serialization.py(9): save", 4_000, "saving and logging"),
        (f"{LOOP} > train.py(12): log > lib/python3.12/logging/__init__.py(9): info", 0, "saving and logging"),
    ],
)
def test_kinds_of_work_are_told_apart_by_stack_and_processor_time(stack: str, cpu: float, subject: str) -> None:
    b = host_loop()
    for at in (3_000, 7_000, 11_000, 15_000, 23_000, 27_000, 31_000, 35_000):
        b.sample(stack, at, lasts=4_000, cpu=cpu, step=at // 20_000)
    trace = b.build()
    check_step_accounts(trace)
    finding = only(trace)
    assert (finding.subject, finding.where.line, finding.cost_ns) == (subject, 12, 34_000_000)


@pytest.mark.parametrize(
    ("stack", "title"),
    [
        ("train.py(9): <module> > zlib.crc32", "the host does other work: mostly in zlib.crc32"),
        (
            "train.py(9): <module> > site-packages/transformers/trainer.py(5): run > x.view",
            "the host is in a library's own loop",
        ),
    ],
)
def test_work_of_a_library_is_not_told_by_the_call_it_stood_at(stack: str, title: str) -> None:
    b = host_loop()
    for number in range(12):
        b.sample(stack, 1_000_000 + number, step=100 + number)
    finding = only(b.build())
    assert (finding.title, finding.where.line) == (title, 9)


def test_samples_beside_recorded_ops_take_nothing_from_them() -> None:
    b = host_loop(work_us=100)
    for at in (3_000, 7_000, 23_000, 27_000):
        b.sample(f"{LOOP} > time.sleep", at, cpu=0, step=at // 20_000)
    trace = b.build()
    (account,) = trace.fact(step_accounts)
    assert account.total_ns["sleeping"] == 0
    assert judge(HOST_BOUND, trace).status == "clean"


def test_too_few_samples_in_traced_steps_are_replaced_by_those_of_free_steps() -> None:
    b = host_loop()
    for number in range(12):
        line = 12 if number < 9 else 13
        b.sample(f"{LOOP} > train.py({line}): tokenize", 1_000_000 + number, step=100 + number)
    b.sample(f"{LOOP} > site-packages/torch/nn/functional.py(4): linear", 2_000_000, step=200)
    finding = only(b.build())
    assert (finding.where.line, finding.evidence[0]["idle_ns"]) == (12, round(0.75 * 34_000_000))
    assert "without a profiler" in finding.advice


def lock_loop(*, delay: float, cpu: float, callee: str = "torch.relu") -> Trace:
    b = host_loop(work_us=1_500)
    for number in range(20):
        at = 2_000 * number + 500
        b.sample(f"{LOOP} > {callee}", at, lasts=2_000, cpu=400, delay=delay, step=number // 10)
        b.sample("train.py(50): publish > train.py(60): encode", at, lasts=2_000, cpu=cpu, delay=delay, tid=2)
    return b.build()


def test_a_thread_that_keeps_the_interpreters_lock_is_named() -> None:
    finding = only(lock_loop(delay=5_000, cpu=1_200))
    assert finding.subject == "waiting for the interpreter's lock"
    assert (finding.where.line, finding.cost_ns) == (60, round(0.6 * 40_000_000))
    assert finding.evidence[0]["lock_held_by"] == "2"


@pytest.mark.parametrize(
    "trace",
    [
        lock_loop(delay=100, cpu=1_200),
        lock_loop(delay=5_000, cpu=180),
        lock_loop(delay=5_000, cpu=1_200, callee="time.sleep"),
        lock_loop(delay=5_000, cpu=1_200, callee="loss.item"),
    ],
    ids=["the lock was free", "the other thread hardly works", "it sleeps", "it waits for the device"],
)
def test_other_waits_are_not_the_locks(trace: Trace) -> None:
    assert judge(HOST_BOUND, trace).status == "clean"


def loader_loop(workers: int = 0) -> TraceBuilder:
    """Steps of 20 ms, of which a fetch takes 16."""
    b = TraceBuilder(recorded=EVERYTHING - {"device_work"})
    b.loaders = (SampledLoader(dataset="Text", batch_size=4, workers=workers),)
    for number in range(4):
        begin = 20_000 * number
        b.step(number, begin, begin + 20_000)
        b.annotation("enumerate(DataLoader)#_Iter.__next__", begin, begin + 16_000)
        b.op("aten::mm", begin + 16_000, begin + 20_000)
    return b


def test_the_function_that_makes_the_batch_is_named_with_its_time_per_sample() -> None:
    b = loader_loop()
    for number in range(4):
        for at, line in ((2_000, 6), (6_000, 6), (10_000, 6), (14_000, 9)):
            stack = f"{LOOP} > {FETCH} > train.py({line}): Text.__getitem__"
            b.sample(stack, 20_000 * number + at, lasts=4_000, step=number)
    finding = only(b.build(), INPUT_STALL)
    assert "Text.__getitem__ line 6 takes 4.00 ms of 4.00 ms per sample" in finding.detail
    assert (finding.evidence[0]["site"], finding.evidence[0]["share"]) == ("train.py:6", 0.75)
    assert "About 4 workers" in finding.detail, "16 ms of batches beside 4 ms of other work"


def test_of_a_loader_without_the_users_code_the_librarys_function_is_named() -> None:
    b = loader_loop()
    for at in (2_000, 6_000, 22_000, 26_000, 42_000, 46_000):
        b.sample(f"{LOOP} > {FETCH} > site-packages/torch/utils/data/_utils/collate.py(7): collate", at, step=0)
    finding = only(b.build(), INPUT_STALL)
    assert "collate line 7" in finding.detail


def worker_loop(busy: int) -> TraceBuilder:
    """Two workers that make batches in ``busy`` of ten samples."""
    b = loader_loop(workers=2)
    for number in range(40):
        at = 2_000 * number + 100
        b.sample(f"{LOOP} > {LOADER} > self.poll", at, lasts=2_000, cpu=10, step=number // 10)
        for worker in ("DataLoader worker 0", "DataLoader worker 1"):
            makes = number % 10 < busy
            inner = f"{FETCH} > train.py(6): Text.__getitem__" if makes else f"{LOADER} > self.poll"
            b.sample(inner, at + 1, lasts=2_000, cpu=2_000 if makes else 0, worker=worker)
    return b


def test_busy_workers_need_more_of_them() -> None:
    finding = only(worker_loop(busy=10).build(), INPUT_STALL)
    assert "Text.__getitem__ line 6 takes 10.0 ms of 10.0 ms per sample" in finding.detail, "40 ms of work a batch of 4"
    assert "About 10 workers instead of 2" in finding.detail, "40 ms of batches a step beside 4 ms of other work"
    loads = [row for row in finding.evidence if "worker" in row]
    assert [row["busy_share"] for row in loads] == [1.0, 1.0]


def test_idle_workers_are_not_what_the_program_waits_for() -> None:
    finding = only(worker_loop(busy=3).build(), INPUT_STALL)
    assert "More workers would not hide it" in finding.detail


def test_without_samples_the_loop_alone_is_named() -> None:
    finding = only(loader_loop().build(), INPUT_STALL)
    assert finding.title.endswith("4 fetches")
    assert finding.detail == ""
