"""Steps that wait for storage."""

from __future__ import annotations

import pytest

from perfscope.model.finding import Finding
from tests.build import EVERYTHING, TraceBuilder
from tests.rules import judged_by

judge = judged_by("storage_bound")

TRAIN = "train.py(30): main > train.py(12): forward > torch.relu"
LOADER = "train.py(29): main > site-packages/torch/utils/data/dataloader.py(9): __next__"
READ = f"{LOADER} > train.py(5): __getitem__ > np.fromfile"
WORKER = "site-packages/torch/utils/data/_utils/worker.py(9): _worker_loop > train.py(5): __getitem__ > np.fromfile"
STEP_US, STEPS, FIRST_US = 10_000.0, 40, 1_000_000.0
RECORDED = (EVERYTHING - {"device_work"}) | {"python_samples", "storage", "run_steps"}


def training(
    stack: str = READ,
    *,
    busy: float = 0.1,
    share: float = 0.5,
    megabytes: float = 8,
    worker: str = "",
    wait: float = 0,
    op_from: float = 0,
) -> TraceBuilder:
    """Steps of 10 ms, of which ``share`` is in ``stack``, ``busy`` of it on the processor; 40 samples per step."""
    b = TraceBuilder(recorded=RECORDED)
    b.step(0, 0, STEP_US)
    b.op("aten::relu", op_from * STEP_US, STEP_US)
    at, every = FIRST_US, STEP_US / 40
    for number in range(1, STEPS + 1):
        for piece in range(40):
            inside = piece < share * 40
            b.sample(
                stack if inside else TRAIN, at + piece * every, lasts=every, cpu=every * (busy if inside else 1),
                step=number, step_us=STEP_US,
            )  # fmt: skip
            if worker:
                b.sample(worker, at + piece * every, lasts=every, cpu=every * busy, worker="worker 0")
        b.run_step(number, at, at + STEP_US, wait=wait)
        at += STEP_US
        b.row("storage", step=number, at_ns=round(at * 1000), read_bytes=round(number * megabytes * 1e6),
              fetched_bytes=round(number * megabytes * 0.75e6))  # fmt: skip
    b.step_times_us = (STEP_US,) * STEPS
    return b


def only(b: TraceBuilder) -> Finding:
    (finding,) = judge(b).findings
    return finding


def test_the_line_that_reads_is_named_with_its_bytes_and_the_page_cache() -> None:
    finding = only(training())
    assert (finding.where.file, finding.where.line) == ("train.py", 5)
    assert finding.cost_ns_per_step == 5_000_000
    row = finding.evidence[0]
    assert (row["read_bytes"], row["fetched_bytes"], row["page_cache_share"]) == (8_000_000, 6_000_000, 0.25)
    assert row["reading_share"] == pytest.approx(1.0)
    assert "1.6 GB/s" in finding.detail, "8 MB in the rest of the step"
    assert finding.advice.startswith("Read ahead")


def test_the_time_of_a_read_in_the_loop_is_not_left_for_other_rules() -> None:
    finding = only(training("train.py(30): main > train.py(5): read > np.fromfile", op_from=0.5))
    assert finding.covers_ns == {"other_host": 5_000_000}


def test_workers_that_wait_for_storage_are_what_the_program_waits_for() -> None:
    waits = f"{LOADER} > lib/python3.11/multiprocessing/connection.py(9): poll > self._poll"
    finding = only(training(waits, worker=WORKER))
    assert finding.where.line == 5
    assert finding.evidence[0]["workers"] == 1
    assert finding.advice.startswith("Read fewer bytes")


@pytest.mark.parametrize(("share", "status"), [(0.05, "flagged"), (0.025, "clean")])
def test_below_a_twentieth_of_the_step_it_is_clean(share: float, status: str) -> None:
    assert judge(training(share=share)).status == status


def test_decoding_is_work_and_no_waiting() -> None:
    decode = f"{LOADER} > train.py(5): __getitem__ > decode"
    assert judge(training(decode, busy=0.6)).status == "clean"
    assert judge(training(decode, busy=0.1)).status == "flagged"
    assert judge(training(READ, busy=0.6)).status == "flagged", "a call that only reads"


def test_waiting_without_bytes_is_for_something_else() -> None:
    assert judge(training(megabytes=0.01)).status == "clean"


def test_a_sleep_is_no_reading() -> None:
    assert judge(training("train.py(29): main > train.py(7): pause > time.sleep")).status == "clean"


def test_a_line_of_the_loop_may_read_too() -> None:
    finding = only(training("train.py(29): main > train.py(40): batch > np.asarray"))
    assert (finding.where.line, finding.cost_ns_per_step) == (40, 4_500_000)


def test_other_rules_leave_the_waiting_to_it() -> None:
    b = training()
    b.slice("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 5_000)
    assert judged_by("input_stall")(b).status == "clean"
    b = training(megabytes=0.01)
    b.slice("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 5_000)
    assert judged_by("input_stall")(b).status == "flagged"


def test_reading_for_an_evaluation_is_left_to_its_rule() -> None:
    b = training()
    b.recorded = RECORDED | {"side_work"}
    begin = round(FIRST_US * 1000)
    b.row(
        "side_work", kind=b.code("evaluation"), call=b.code("eval"), file=b.code("train.py"), line=33,
        function=b.code("main"), from_ns=begin, until_ns=begin + round(STEPS * STEP_US * 1000), stored_ns=-1, bytes=-1,
        of_steps=True,
    )  # fmt: skip
    assert judge(b).status == "clean"
    assert judged_by("eval_stall")(b).status == "flagged"


def test_without_counters_it_abstains() -> None:
    b = training()
    b.recorded = RECORDED - {"storage"}
    assert judge(b).missing == ("storage",)


def test_on_a_busy_machine_it_abstains() -> None:
    outcome = judge(training(wait=STEP_US / 2))
    assert outcome.status == "abstained"
    assert "core" in (outcome.reason or "")


def test_a_line_of_an_op_reads_nothing() -> None:
    assert judge(training("train.py(29): main > train.py(62): forward > torch.matmul")).status == "clean"
