"""The account of the host: exact activity of the main thread, next to that of the devices."""

from __future__ import annotations

import numpy as np
import pytest

from perfscope.analyzers.readers.load import load_one
from perfscope.analyzers.time import steps_work, warm_windows
from perfscope.analyzers.time.host_account import HOST_PARTS, host_account
from perfscope.model.trace import CallKind, SliceKind
from tests.build import TraceBuilder
from tests.conftest import corpus_files, every_file


def test_parts_of_a_step() -> None:
    build = TraceBuilder()
    build.step(1, 0, 1_000)
    build.op("aten::mm", 0, 100)
    build.op("Torch-Compiled Region: 0/0", 100, 300)
    build.slice("autograd::engine", 300, 500, tid=2)
    build.call("cudaStreamSynchronize", 600, 800, kind=CallKind.SYNC)
    build.slice("enumerate(DataLoader)#_Single.__next__", 800, 850, kind=SliceKind.ANNOTATION)
    build.kernel("gemm", 100, 800)
    account = host_account(build.build())
    assert account is not None
    parts = {part: time // 1000 for part, time in account.total_ns.items() if time}
    assert parts == {
        "ops": 100,
        "compiled_regions": 200,
        "other_threads": 200,
        "sync": 200,
        "input": 50,
        "python": 250,
    }


def test_a_recording_without_the_host_has_none() -> None:
    build = TraceBuilder()
    build.kernel("gemm", 0, 100)
    assert host_account(build.build()) is None


@pytest.mark.corpus
@pytest.mark.parametrize("path", every_file(corpus_files("kineto")), ids=lambda path: path.name.split(".json")[0])
def test_the_parts_sum_to_every_step(path) -> None:
    trace = load_one(path)
    account, windows = host_account(trace), trace.fact(warm_windows)
    if account is not None:
        sums = np.sum([account.parts_ns[part] for part in HOST_PARTS], axis=0)
        work = trace.fact(steps_work)
        if work is not None and work.late:  # the account of the devices is of other times
            marks = {step.number: step.host_ns for step in work.steps}
            assert sums.tolist() == [marks[number] for number in windows.numbers]
        else:
            assert (sums == windows.ends - windows.starts).all()
