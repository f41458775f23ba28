"""The sampler of Python stacks: what it sees, what it costs, and that it leaves the interpreter as it was."""

from __future__ import annotations

import gc
import gzip
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perfscope.model.documents.stacks import COLLECTING, StackSamples, dump_stacks, load_stacks
from perfscope.model.errors import DataError
from perfscope.profiler.sampling import sampler as sampler_module
from perfscope.profiler.sampling.sampler import StackSampler
from perfscope.profiler.sampling.stack_tree import StackReader
from perfscope.profiler.source_files import SourceFiles


def spin(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def nap(seconds: float) -> None:
    time.sleep(seconds)


def collect() -> None:
    keep = [[number] for number in range(200_000)]
    until = time.thread_time() + 0.3
    while time.thread_time() < until:
        gc.collect()
    del keep


@pytest.fixture
def sampler() -> Iterator[StackSampler]:
    made = StackSampler(SourceFiles(Path.cwd(), ()))
    yield made
    made.stop()


def stacks(samples: StackSamples) -> Iterator[tuple[list[str], int]]:
    """Functions of each sample, innermost first, and the thread's number."""
    for frame, thread in zip(samples.frame, samples.thread, strict=True):
        names, row = [], frame
        while row >= 0:
            caller, _, _, function = samples.frames[row]
            names.append(samples.texts[function])
            row = caller
        yield names, thread


def sampled(sampler: StackSampler, work: Callable[[], None]) -> StackSamples:
    sampler.resume(traced=True)
    begin = time.perf_counter_ns()
    work()
    sampler.step(7, begin, time.perf_counter_ns())
    sampler.stop()
    return sampler.document()


def test_time_goes_to_the_function_that_takes_it(sampler: StackSampler) -> None:
    def work() -> None:
        spin(0.3)
        nap(0.3)
        collect()

    samples = sampled(sampler, work)
    functions = Counter(name for names, _ in stacks(samples) for name in set(names))
    assert functions["spin"] >= 5
    assert functions["nap"] >= 5
    assert functions[COLLECTING] >= 1
    asleep = [
        spent
        for (names, _), spent, lasts in zip(stacks(samples), samples.cpu_ns_of, samples.lasts_ns, strict=True)
        if "time.sleep" in names and spent < 0.3 * lasts
    ]
    assert len(asleep) >= 3, "a thread that sleeps has no processor"
    assert [thread.name for thread in samples.threads if thread.loop] == ["MainThread"]
    assert samples.steps[0][0] == 7
    (line,) = {line for _, file, line, function in samples.frames if samples.texts[function] == "nap" and file >= 0}
    assert line == nap.__code__.co_firstlineno + 1
    assert not any("perfscope/profiler" in text for text in samples.texts), "no frame of ours"


def test_a_collection_in_which_no_thread_could_run_is_sampled(sampler: StackSampler) -> None:
    heap = [[number] for number in range(2_000_000)]  # a collection of several periods, on a fast machine too
    began = time.perf_counter_ns()
    sampler.resume(traced=True)  # its thread runs for the first time after the collection
    gc.collect()
    took = time.perf_counter_ns() - began
    spin(0.02)
    sampler.step(7, began, time.perf_counter_ns())
    sampler.stop()
    samples = sampler.document()
    seen = [lasts for (names, _), lasts in zip(stacks(samples), samples.lasts_ns, strict=True) if COLLECTING in names]
    assert len(heap) == 2_000_000
    assert 2 * sum(seen) > took


def test_other_threads_are_seen_while_they_work(sampler: StackSampler) -> None:
    worker = threading.Thread(target=spin, args=(0.3,), name="tokenizer")
    idle = threading.Event()
    sleeper = threading.Thread(target=idle.wait, name="sleeper", daemon=True)
    sleeper.start()

    def work() -> None:
        worker.start()
        worker.join()

    samples = sampled(sampler, work)
    idle.set()
    counts = Counter(samples.threads[thread].name for _, thread in stacks(samples))
    assert counts["tokenizer"] >= 3
    assert counts["sleeper"] <= 3 < counts["MainThread"], "of a thread that does nothing no samples are kept"


def test_the_interpreter_is_left_as_it_was(sampler: StackSampler) -> None:
    interval, callbacks = sys.getswitchinterval(), list(gc.callbacks)
    sampler.resume(traced=True)
    spin(0.05)
    sampler.pause()
    spin(0.05)
    sampler.resume(traced=False)
    spin(0.05)
    sampler.stop()
    assert sys.getswitchinterval() == pytest.approx(interval)
    assert gc.callbacks == callbacks
    assert "perfscope-stacks" not in {thread.name for thread in threading.enumerate()}


def test_a_switch_interval_of_the_programs_own_stays(sampler: StackSampler) -> None:
    interval = sys.getswitchinterval()
    try:
        sampler.resume(traced=True)
        spin(0.1)
        sys.setswitchinterval(0.0123)
        sampler.stop()
        assert sys.getswitchinterval() == pytest.approx(0.0123)
    finally:
        sys.setswitchinterval(interval)


def test_it_stops_itself_above_its_budget(sampler: StackSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BUDGET": 0.0, "WATCHED_TICKS": 2, "PERIOD_S": 0.002, "LONGEST_PERIOD_S": 0.004}.items():
        monkeypatch.setattr(sampler_module, name, value)
    small = StackSampler(SourceFiles(Path.cwd(), ()))
    small.resume(traced=False)
    until = time.monotonic() + 10
    while small.stopped is None and time.monotonic() < until:
        time.sleep(0.01)
    assert "budget" in str(small.stopped)
    assert "budget" in str(small.document().stopped)
    small.resume(traced=False)
    ticks = small.ticks
    time.sleep(0.05)
    assert small.ticks == ticks, "it does not begin again"


def test_what_it_keeps_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "MOST_TICKS", 5)
    small = StackSampler(SourceFiles(Path.cwd(), ()))
    small.resume(traced=True)
    spin(0.3)
    assert small.ticks == 5
    small.stop()


def test_a_recording_that_is_requested_later_is_sampled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "MOST_TICKS", 3)
    monkeypatch.setattr(sampler_module, "MOST_TRACED_TICKS", 4)
    small = StackSampler(SourceFiles(Path.cwd(), ()))
    small.resume(traced=False)
    spin(0.3)
    assert small.ticks == 3
    small.resume(traced=False)
    spin(0.1)
    assert small.ticks == 3
    small.resume(traced=True)
    begin = time.perf_counter_ns()
    spin(0.3)
    small.step(9, begin, time.perf_counter_ns())
    small.stop()
    assert small.ticks == 7


def test_nothing_of_the_program_is_held(sampler: StackSampler) -> None:
    class Big:
        pass

    alive = [0]

    def work() -> None:
        big = Big()
        alive[0] = sys.getrefcount(big)
        spin(0.1)
        assert sys.getrefcount(big) == alive[0]

    sampled(sampler, work)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ({"schema": "perfscope.stacks/9"}, "schema"),
        ({"frame": [99]}, "point outside"),
        ({"frames": [[0, -1, -1, 0]]}, "point outside"),
        ({"time_ns": []}, "point outside"),
        ({"time_ns": [2**70]}, "stack samples"),
        ({"threads": None}, "not stack samples"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, damage: dict[str, object], words: str) -> None:
    small = StackSampler(SourceFiles(Path.cwd(), ()))
    raw = json.loads(gzip.decompress(dump_stacks(small.document())))
    raw |= {
        "threads": [{"name": "MainThread", "native_id": 1, "loop": True}],
        "texts": ["main"], "frames": [[-1, -1, -1, 0]], "time_ns": [5], "lasts_ns": [1], "delay_ns": [0],
        "thread": [0], "frame": [0], "cpu_ns_of": [-1],
    }  # fmt: skip
    path = tmp_path / "stacks.json.gz"
    path.write_bytes(gzip.compress(json.dumps(raw).encode()))
    assert load_stacks(path).texts == ("main",)
    path.write_bytes(gzip.compress(json.dumps(raw | damage).encode()))
    with pytest.raises(DataError, match=words) as caught:
        load_stacks(path)
    assert "\n" not in str(caught.value)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError):
        load_stacks(path)


def test_a_stack_is_that_of_the_thread() -> None:
    begun, end = threading.Event(), threading.Event()

    def inner() -> None:
        begun.set()
        end.wait()

    def outer() -> None:
        inner()

    thread = threading.Thread(target=outer)
    thread.start()
    begun.wait()
    try:
        gc.collect(0)  # none is due while the stack is read
        assert thread.ident is not None
        stack = StackReader().read(thread.ident)
    finally:
        end.set()
        thread.join()
    assert stack is not None
    names = [code.co_name for code, _ in stack]
    assert names[names.index("inner") :][:2] == ["inner", "outer"]
    assert all(code.co_name and offset >= 0 for code, offset in stack)
    assert StackReader().read(thread.ident) is None


GENERATORS = """
import sys, threading, time
from perfscope.profiler.sampling.stack_tree import StackReader

sys.setswitchinterval(1e-6)
reader, count, main = StackReader(), 0, threading.get_ident()

def sample():
    global count
    while True:
        count += reader.read(main) is not None

def numbers(n):
    for number in range(n):
        yield number

def work(n):
    return n if n == 0 else work(n - 1) + sum(numbers(3))

threading.Thread(target=sample, daemon=True).start()
end = time.monotonic() + 6
while time.monotonic() < end:
    work(20)
    list(map(lambda value: work(3), range(3)))
assert count > 1000, count
"""


@pytest.mark.slow
def test_reading_stacks_of_generators_does_not_kill_the_program() -> None:
    done = subprocess.run([sys.executable, "-c", GENERATORS], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_steps_that_were_none_are_forgotten_with_their_samples(sampler: StackSampler) -> None:
    before = sampled(sampler, lambda: spin(0.3))
    assert before.steps
    assert before.time_ns
    sampler.start_over()
    after = sampler.document()
    assert (after.steps, after.time_ns) == ((), ())
