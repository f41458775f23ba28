from __future__ import annotations

from msgspec.structs import replace

from perfscope.analyzers.engine import judge
from perfscope.analyzers.registry import load_rule
from perfscope.model.documents.run import ProgramFact
from perfscope.model.documents.stacks import SampledLoader
from perfscope.model.finding import Finding, Outcome
from perfscope.model.trace.core_facts import CoreFacts
from tests.build import TraceBuilder
from tests.rules import judged_by

LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


_judge = judged_by("input_stall")


def _on_device(stall: float, name: str = LOADER, before: float = 100) -> TraceBuilder:
    """A step of 1 ms: work until 400 us, then ``stall`` us of idle in the loader, then work.

    The fetch begins ``before`` us before the device is idle.
    """
    b = TraceBuilder()
    b.step(1, 0, 1000)
    b.python("train.py(10): epoch", 0, 1000)
    b.launched("a", 0, 5, 400, correlation=1)
    b.annotation(name, 400 - before, 400 + stall)
    b.launched("b", 400 + stall, 400 + stall, 1000, correlation=2)
    return b


def test_flagged_with_the_idle_time_and_the_line_of_the_loop():
    outcome = _judge(_on_device(200))
    (finding,) = outcome.findings
    assert (outcome.status, finding.basis, finding.cost_ns, finding.cost_ns_per_step) == (
        "flagged", "measured", 200_000, 200_000,
    )  # fmt: skip
    assert (finding.subject, finding.where.file, finding.where.line) == (LOADER, "train.py", 10)
    assert (finding.evidence[0]["stall_ns"], finding.evidence[0]["fetch_ns"]) == (200_000, 300_000)


def test_the_threshold_is_a_twentieth_of_the_step():
    assert _judge(_on_device(50, before=200)).status == "flagged"
    assert _judge(_on_device(49.9, before=200)).status == "clean"


def test_a_fetch_as_short_as_a_ready_batch_from_a_worker_counts_from_a_fifth_of_the_step():
    own = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    assert _judge(_on_device(150, own, before=50)).status == "flagged"
    assert _judge(_on_device(150, own, before=49.9)).status == "clean"
    assert _judge(_on_cpu(199.9)).status == "clean"


def test_short_fetches_that_are_a_fifth_of_the_step_are_not_for_workers():
    def fetched(length: float, loader: str) -> Outcome:
        b = TraceBuilder(recorded=frozenset({"host_ops", "steps"}))
        b.step(1, 0, 500)
        b.annotation("ProfilerStep#1", 0, 500)
        b.annotation(loader, 0, length)
        b.op("aten::mm", 250, 500)
        return _judge(b)

    own = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    (finding,) = fetched(100, own).findings
    assert (finding.cost_ns, "x[indices]" in finding.advice, "num_workers" in finding.advice) == (100_000, True, False)
    assert fetched(99.9, own).status == "clean"
    assert fetched(100, LOADER).status == "clean", "a worker made the batch"


def test_fetching_while_the_device_is_busy_costs_nothing():
    b = TraceBuilder()
    b.step(1, 0, 1000)
    b.launched("a", 0, 5, 900, correlation=1)
    b.annotation(LOADER, 100, 800)
    b.launched("b", 850, 900, 1000, correlation=2)
    assert _judge(b).status == "clean"


def test_a_region_named_input_is_a_loader():
    assert _judge(_on_device(200, name="input")).status == "flagged"


def test_a_loader_of_another_thread_is_clean():
    b = TraceBuilder()
    b.step(1, 0, 1000)
    b.launched("a", 0, 5, 400, correlation=1)
    b.annotation(LOADER, 300, 600, tid=2)
    b.launched("b", 600, 605, 1000, correlation=2)
    assert _judge(b).status == "clean"


def _on_cpu(fetch: float, tid: int = 1) -> TraceBuilder:
    b = TraceBuilder(recorded=frozenset({"host_ops", "steps"}))
    b.step(1, 0, 1000)
    b.annotation("ProfilerStep#1", 0, 1000)
    b.annotation(LOADER, 0, fetch, tid=tid)
    b.op("aten::mm", 500, 1000)
    return b


def test_on_cpu_the_programs_own_thread_waits():
    outcome = _judge(_on_cpu(200))
    assert outcome.status == "flagged"
    assert outcome.findings[0].cost_ns_per_step == 200_000


def test_on_cpu_a_loader_that_works_ahead_on_its_own_thread_is_clean():
    assert _judge(_on_cpu(200, tid=2)).status == "clean"


def test_on_cpu_the_programs_thread_is_that_of_the_steps_whatever_they_are_called():
    b = TraceBuilder(recorded=frozenset({"host_ops", "steps"}))
    b.step(1, 0, 1000)
    b.annotation("perfscope.step", 0, 1000)
    b.annotation("input", 0, 300)
    b.op("dot.1", 310, 1000, tid=2)  # XLA's own thread: most of the ops are on it
    assert _judge(b).status == "flagged"


def test_on_cpu_only_fetches_within_the_steps_count():
    b = _on_cpu(200)
    b.annotation(LOADER, 1500, 1900)
    assert [finding.cost_ns for finding in _judge(b).findings] == [200_000]


def test_a_loader_inside_a_loader_is_counted_once():
    b = _on_cpu(200)
    b.annotation("input", 10, 190)
    assert [finding.cost_ns for finding in _judge(b).findings] == [200_000]


def test_abstains_without_a_loader_if_the_device_waited():
    b = TraceBuilder()
    b.step(1, 0, 1000)
    b.launched("a", 0, 5, 400, correlation=1)
    b.launched("b", 600, 605, 1000, correlation=2)
    outcome = _judge(b)
    assert outcome.status == "abstained"
    assert 'perfscope.region("input")' in (outcome.reason or "")


def test_without_a_loader_a_busy_device_is_clean():
    b = TraceBuilder()
    b.step(1, 0, 1000)
    b.launched("a", 0, 5, 400, correlation=1)
    b.launched("b", 390, 405, 1000, correlation=2)
    assert _judge(b).status == "clean"


def test_abstains_on_cpu_without_a_loader():
    b = TraceBuilder(recorded=frozenset({"host_ops"}))
    b.op("aten::mm", 0, 10)
    assert _judge(b).status == "abstained"


def _started(value: str, count: int, steps: int = 60) -> Finding:
    fact = ProgramFact(name="loader_start", value=value, file="train.py", line=9, count=count)
    trace = replace(_on_cpu(200).build(), program_facts=(fact,), step_times_ns=(1_000_000,) * steps)
    return judge(load_rule("input_stall"), trace).findings[0]


def test_workers_that_are_started_in_each_epoch_are_kept():
    finding = _started("same loader", 3)
    assert finding.advice.startswith("Keep the workers between epochs: `persistent_workers=True`")
    assert "started 3 times at train.py:9" in finding.detail
    assert _started("new loader", 30).advice.startswith("Create the DataLoader once, before the loop")


def test_workers_that_are_started_rarely_are_not_named():
    for finding in (_started("same loader", 2), _started("same loader", 3, steps=151)):
        assert finding.advice.startswith("Load ahead")
        assert "started" not in finding.detail


def test_a_loader_that_has_workers_is_told_what_to_do_with_them():
    def advice(workers: int, cores: int = 8) -> str:
        trace = replace(
            _on_cpu(200).build(),
            loaders=(SampledLoader(dataset="Text", batch_size=4, workers=workers),),
            core_facts=CoreFacts(cores=cores),
        )
        return judge(load_rule("input_stall"), trace).findings[0].advice

    assert advice(0).startswith("Load ahead: `DataLoader(..., num_workers=N")
    assert "more workers than 4" in advice(4)
    assert advice(4, cores=4).startswith("Start fewer workers than cores: 4 workers and the step share 4 cores.")


def test_a_loader_inside_a_package_belongs_to_the_loop_of_the_program() -> None:
    b = TraceBuilder()
    b.step(1, 0, 1000)
    b.python("accelerate/data_loader.py(577): __iter__", 0, 1000)
    b.launched("a", 0, 5, 400, correlation=1)
    b.annotation(LOADER, 300, 600)
    b.sample("train.py(45): cycle > site-packages/accelerate/data_loader.py(577): __iter__", 450)
    b.launched("b", 600, 600, 1000, correlation=2)
    (finding,) = _judge(b).findings
    assert (finding.where.file, finding.where.line) == ("train.py", 45)
