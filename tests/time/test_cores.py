"""Time in which the host waited for a core: taken from what the host is seen to do, never called its own work."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.analyzers.engine import analyze, judge
from perfscope.analyzers.readers.run.counters import attach_counters
from perfscope.analyzers.registry import load_rule
from perfscope.analyzers.time.account import StepAccount, check_step_accounts, step_accounts
from perfscope.analyzers.time.host_account import host_account
from perfscope.analyzers.time.whole_run.cores import CoreWaits, carve_waits, core_summary, core_waits, waits_of_steps
from perfscope.dashboards.report.sections.cores import core_facts
from perfscope.model.documents.counters import StepCounters
from perfscope.model.documents.stacks import SampledLoader
from perfscope.model.intervals import covered, intersection_total, merge, union
from perfscope.model.trace import Trace
from perfscope.model.trace import TraceBuilder as TraceRows
from perfscope.model.trace.core_facts import CoreFacts
from tests.build import EVERYTHING, TraceBuilder

HOST_BOUND, SLOW_STEPS = load_rule("host_bound"), load_rule("slow_steps")


def _account(trace: Trace) -> StepAccount:
    (account,) = trace.fact(step_accounts)
    check_step_accounts(trace)
    return account


def _on_host(wait_us: float, *, work_us: float = 10_000) -> TraceBuilder:
    """A step without an accelerator: a function of the user's, then an op. It waited for a core in the function."""
    b = TraceBuilder()
    b.step(1, 0, work_us + 10_000)
    b.python("train.py(12): tokenize", 0, work_us)
    b.op("aten::mm", work_us, work_us + 10_000)
    b.core_reading(0, work_us, wait_us)
    b.core_reading(work_us, work_us + 10_000, 0)
    return b


def test_waiting_is_taken_from_what_the_host_did_and_the_step_stays_whole() -> None:
    account = _account(_on_host(4_000).build())
    assert account.total_ns["core_wait"] == 4_000_000
    assert account.total_ns["other_host"] == 6_000_000
    assert account.total_ns["compute"] == 10_000_000
    assert account.whole_ns == 20_000_000


def test_a_reading_takes_from_all_that_ran_in_it_in_equal_shares() -> None:
    b = TraceBuilder()
    b.step(1, 0, 20_000)
    b.python("train.py(12): tokenize", 0, 15_000)
    b.op("aten::mm", 15_000, 20_000)
    b.core_reading(0, 20_000, 8_000)
    account = _account(b.build())
    assert account.total_ns["core_wait"] == 8_000_000
    assert (account.total_ns["other_host"], account.total_ns["compute"]) == (9_000_000, 3_000_000)


def test_waiting_that_the_system_counts_late_belongs_to_the_readings_before() -> None:
    b = _on_host(0)
    b.tables["cores"].clear()
    b.core_reading(0, 10_000, 0)
    b.core_reading(10_000, 20_000, 14_000)
    waits = b.build().fact(core_waits)
    assert waits is not None
    assert waits.waits.tolist() == [4_000_000, 10_000_000]


def test_of_a_devices_idle_time_the_waiting_is_a_share() -> None:
    b = TraceBuilder()
    b.step(1, 0, 30_000)
    b.python("train.py(12): tokenize", 0, 10_000)
    b.launched("gemm", 10_000, 10_005, 30_000, correlation=1)
    b.core_reading(0, 10_000, 5_000)
    b.core_reading(10_000, 30_000, 20_000)  # the device works meanwhile: it costs nothing
    account = _account(b.build())
    assert account.total_ns["core_wait"] == 5_000_000 + 5_000, "half of the function, and all of the launch"
    assert account.total_ns["other_host"] == 5_000_000
    host = host_account(b.build())
    assert host is not None
    assert sum(host.total_ns.values()) == host.whole_ns == 30_000_000


def test_a_sleeping_thread_waits_for_no_core() -> None:
    b = TraceBuilder()
    b.step(1, 0, 20_000)
    b.python("<built-in function sleep>", 0, 10_000)
    b.op("aten::mm", 10_000, 20_000)
    b.core_reading(0, 20_000, 4_000)
    total = _account(b.build()).total_ns
    assert (total["sleeping"], total["compute"], total["core_wait"]) == (10_000_000, 6_000_000, 4_000_000)


def test_ops_that_other_threads_compute_wait_as_the_slowest_of_them() -> None:
    b = TraceBuilder()
    b.step(1, 0, 10_000)
    b.op("aten::mm", 0, 10_000)
    b.core_reading(0, 10_000, 0, others=3_000)
    assert _account(b.build()).total_ns["core_wait"] == 3_000_000


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 50), st.sampled_from(["a", "b", "c"])), min_size=1, max_size=20),
    st.lists(st.tuples(st.integers(1, 70), st.integers(0, 100)), min_size=1, max_size=20),
    st.booleans(),
)
def test_nothing_is_lost_or_counted_twice(
    spans: list[tuple[int, str]], readings: list[tuple[int, int]], whole: bool
) -> None:
    at, pieces = 0, dict[str, list[tuple[int, int]]]()
    for length, name in spans:
        pieces.setdefault(name, []).append((at, at + length))
        at += length
    parts = {name: union(*np.array(each).T) for name, each in pieces.items()}
    edges = np.concatenate(([0], np.cumsum([length for length, _ in readings])))
    lengths = np.diff(edges)
    waits = np.minimum([wait for _, wait in readings], lengths)
    counted = CoreWaits(starts=edges[:-1], ends=edges[1:], waits=waits, others=waits // 2)
    left, taken = carve_waits(counted, parts, running=("a", "b"), computing=("a",), whole=whole)
    assert merge(*left.values(), taken).total() == at == sum(part.total() for part in left.values()) + taken.total()
    assert left.get("c") == parts.get("c") or covered(left["c"], [0], [at]) == covered(parts["c"], [0], [at])
    for name, part in left.items():
        assert intersection_total(part, parts[name]) == part.total()


def test_host_work_is_what_is_left_without_the_waiting() -> None:
    (finding,) = judge(HOST_BOUND, _on_host(2_000).build()).findings
    assert finding.cost_ns == 8_000_000


def test_small_work_beside_much_waiting_is_not_named() -> None:
    assert judge(HOST_BOUND, _on_host(6_600).build()).status == "flagged", "3.4 ms, more than half of the waiting"
    outcome = judge(HOST_BOUND, _on_host(6_700).build())
    assert outcome.status == "abstained"
    assert outcome.reason is not None
    assert "core" in outcome.reason
    assert analyze(_on_host(6_700).build())["unexplained_idle"].status == "clean", "nor by another rule"


def test_a_sleep_is_named_on_a_busy_machine_too() -> None:
    b = TraceBuilder()
    b.step(1, 0, 30_000)
    b.python("<built-in function sleep>", 0, 8_000)
    b.op("aten::mm", 8_000, 30_000)
    b.core_reading(0, 30_000, 20_000)
    (finding,) = judge(HOST_BOUND, b.build()).findings
    assert finding.subject == "sleeping"


def _slow_steps(wait_us: float) -> TraceBuilder:
    """Forty steps of 10 ms, each eighth 40 ms longer at a separate line."""
    b = TraceBuilder(recorded=EVERYTHING | {"python_samples", "core_waits"})
    b.step(0, 0, 10_000)
    b.op("aten::relu", 0, 10_000)
    times, at = [], 1_000_000.0
    for number in range(1, 41):
        own = 40_000.0 if number % 8 == 0 else 0.0
        times.append(10_000 + own)
        for piece in range(int(times[-1] // 5_000)):
            stack = (
                "train.py(30): main > train.py(12): forward" if piece < 2 else "train.py(33): main > train.py(50): odd"
            )
            b.sample(stack, at + piece * 5_000, lasts=5_000, step=number, step_us=times[-1])
        b.run_step(number, at, at + times[-1], wait=wait_us if own else 0)
        b.core_reading(at, at + times[-1], wait_us if own else 0)
        at += times[-1]
    b.step_times_us = tuple(times)
    return b


def test_a_step_that_waited_for_a_core_is_not_slow_for_its_work() -> None:
    assert judge(SLOW_STEPS, _slow_steps(0).build()).status == "flagged"
    assert judge(SLOW_STEPS, _slow_steps(38_000).build()).status == "clean"


def test_a_reading_over_several_steps_may_be_the_waiting_of_any_of_them() -> None:
    b = TraceBuilder()
    b.step(1, 0, 10)
    b.op("aten::mm", 0, 10)
    b.run_step(1, 0, 1_000)
    b.run_step(2, 1_000, 4_000)
    b.core_reading(0, 4_000, 2_000)
    assert b.build().fact(waits_of_steps) == {1: 1_000_000, 2: 2_000_000}


def _busy(facts: CoreFacts, wait_us: float = 3_000) -> TraceBuilder:
    b = _on_host(wait_us)
    b.run_step(1, 0, 20_000, wait=wait_us)
    b.core_facts = facts
    return b


def test_the_report_says_first_who_took_the_cores() -> None:
    def said(facts: CoreFacts, wait_us: float = 3_000) -> list[str]:
        summary = _busy(facts, wait_us).build().fact(core_summary)
        assert summary is not None
        return list(core_facts([summary]))

    (line,) = said(CoreFacts(cores=2, other_cores=1.26))
    assert "other processes used 1.3 of the 2 cores" in line
    assert "15% of the run's steps" in line
    (line,) = said(CoreFacts(cores=2, compute_threads=8, local_processes=2, other_cores=0.0))
    assert "16 compute threads of 2 processes share 2 cores" in line
    builder = _busy(CoreFacts(cores=2, compute_threads=1, other_cores=0.0))
    builder.loaders = (SampledLoader(dataset="d", batch_size=8, workers=4),)
    summary = builder.build().fact(core_summary)
    assert summary is not None
    (line,) = core_facts([summary])
    assert "1 compute thread and 4 loader workers share 2 cores" in line
    (line,) = said(CoreFacts(cores=8, core_limit=1.5, throttled_share=0.4))
    assert "limit of 1.5 cores" in line
    assert "40%" in line
    assert said(CoreFacts(cores=2, other_cores=1.26), wait_us=1_900) == [], "below a tenth of the step"


def _counted_waits(**facts: object) -> list[int]:
    """Waits per reading of a process that had, in two readings of 10 ms, 19 and 10 ms on its two cores."""
    ms = 1_000_000
    b = TraceBuilder(recorded=EVERYTHING)
    b.step(0, 0, 20_000)
    trace = b.build()
    builder = TraceRows.of(trace)
    begin = int(trace.rows["steps"]["start_ns"][0])
    counters = StepCounters(
        **{"cores": 2, **facts},  # type: ignore[arg-type]
        step_number=(0,), step_begin_ns=(begin,), step_end_ns=(begin + 20 * ms,), step_free=(False,),
        read_ns=(begin, begin + 10 * ms, begin + 20 * ms), cpu_ns=(0, 5 * ms, 10 * ms),
        process_cpu_ns=(0, 19 * ms, 29 * ms), wait_ns=(0, 4 * ms, 8 * ms), others_wait_ns=(0, 0, 0), switches=(0, 0, 0),
    )  # fmt: skip
    attach_counters(builder, counters)
    return [int(wait) for wait in builder.build().rows["cores"]["wait_ns"]]


def test_a_wait_for_the_own_threads_of_the_process_is_no_wait_for_a_core() -> None:
    assert _counted_waits() == [1_000_000, 4_000_000], "others had 1 ms of the first 20 ms of cores at most"
    assert _counted_waits(compute_threads=2) == [1_000_000, 4_000_000]
    assert _counted_waits(compute_threads=8) == [4_000_000, 4_000_000], "too many threads disturb each other"
    assert _counted_waits(core_limit=1.0) == [0, 0], "it used all that its cgroup allows"


def test_findings_of_host_time_say_that_the_machine_was_busy() -> None:
    (finding,) = judge(HOST_BOUND, _busy(CoreFacts(cores=2)).build()).findings
    assert "busy machine" in finding.detail
    (finding,) = judge(HOST_BOUND, _busy(CoreFacts(cores=2), wait_us=1_900).build()).findings
    assert "busy machine" not in finding.detail


def _between_python(wait_us: float, stack: str = "") -> TraceBuilder:
    """A step of the host with 10 ms in which no op runs, and the sampled stack of it, if any."""
    b = TraceBuilder(recorded=EVERYTHING - {"device_work"} | {"core_waits", "python_samples"})
    b.step(1, 0, 30_000)
    b.op("dot", 10_000, 30_000)
    if stack:
        for piece in range(10):
            b.sample(stack, piece * 1_000, lasts=1_000, step=1)
    b.core_reading(0, 10_000, wait_us)
    b.core_reading(10_000, 30_000, 0)
    return b


def test_work_of_which_nothing_is_known_is_not_named_on_a_busy_machine() -> None:
    assert judge(HOST_BOUND, _between_python(0).build()).status == "flagged"
    assert not judge(HOST_BOUND, _between_python(4_000).build()).findings
    assert judge(HOST_BOUND, _between_python(4_000, "train.py(30): main > train.py(12): pad").build()).findings


def test_saving_in_some_steps_is_held_against_the_time_with_a_core() -> None:
    b = TraceBuilder(recorded=EVERYTHING - {"device_work"} | {"core_waits"})
    for number in range(3):
        b.step(number, number * 30_000, (number + 1) * 30_000)
        b.op("dot", number * 30_000, number * 30_000 + (30_000 if number < 2 else 26_000))
        b.core_reading(number * 30_000, (number + 1) * 30_000, 28_000 if number < 2 else 0)
    b.python("numpy/lib/_npyio_impl.py(9): savez", 86_000, 90_000)
    (finding,) = judge(HOST_BOUND, b.build()).findings
    assert finding.subject == "saving and logging"
