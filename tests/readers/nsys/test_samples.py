"""CPU samples of Nsight Systems: stacks, the time they represent, and their use in `host_bound`."""

from __future__ import annotations

from pathlib import Path

from perfscope.analyzers.engine import judge
from perfscope.analyzers.registry import load_rule
from perfscope.analyzers.time.host_activity import NOT_RECORDED, host_work
from perfscope.model.intervals import union
from perfscope.model.trace import MISSING, SliceKind, Trace
from tests.readers.nsys.exports import EPOCH_NS, Export, read, read_one, tid_of

MAIN, LIBC, DRIVER = "/home/me/solver", "/usr/lib/x86_64-linux-gnu/libc-2.31.so", "/usr/lib/libcuda.so.1"
OUTER = (("main", MAIN), ("[Max depth]", "[Max depth]"))


def _stack(trace: Trace, row: int) -> list[str]:
    frames, result = trace.rows["frames"], []
    frame = int(trace.rows["samples"]["frame"][row])
    while frame != MISSING:
        result.append(trace.text(int(frames["name"][frame])))
        frame = int(frames["parent"][frame])
    return result


def _busy(start: float, end: float) -> Export:
    """Two kernels, and between them nothing that the profiler's tables of calls know."""
    export = Export()
    export.call("cudaLaunchKernel_v7000", start - 20, start - 10, correlation=1)
    export.kernel("k", start - 10, start, correlation=1)
    export.call("cudaLaunchKernel_v7000", end, end + 10, correlation=2)
    export.kernel("k", end + 10, end + 20, correlation=2)
    return export


def test_a_stack_ends_at_the_programs_own_function(tmp_path: Path) -> None:
    export = _busy(1000, 9000)
    export.sample(2000, ("memcpy", LIBC), ("step(int)", MAIN), *OUTER)
    export.sample(2100, ("0x7f", DRIVER), ("0x7e", DRIVER), *OUTER)
    export.sample(2200, ("malloc", LIBC), ("0x7f", LIBC))
    export.sample(2300, ("0x12", "/opt/libfast.so"), ("0x13", "/opt/libfast.so"), *OUTER)
    trace = read_one(tmp_path, export)
    assert [_stack(trace, row) for row in range(4)] == [
        ["step(int) (solver)", "main (solver)"],
        ["main (solver)"],
        ["malloc (libc-2.31.so)", "libc-2.31.so"],
        ["libfast.so", "main (solver)"],
    ]
    assert "native_samples" in trace.recorded
    assert trace.rows["samples"]["time_ns"].tolist() == [EPOCH_NS + us * 1000 for us in (2000, 2100, 2200, 2300)]
    assert not any("/home" in text or "/usr" in text for text in trace.strings)


def test_a_pause_between_samples_belongs_to_no_function(tmp_path: Path) -> None:
    export = _busy(0, 20_000)
    for time in (*range(1000, 5000, 100), *range(15_000, 16_000, 100)):
        export.sample(time, ("solve", MAIN), *OUTER)
    trace = read_one(tmp_path, export)
    work = host_work(trace, union([EPOCH_NS], [EPOCH_NS + 20_000_000]))
    by_name = {item.name: item.total_ns for item in work}
    # 40 and 10 samples 100 us apart: from 900 to 5000 us, and from 14,600 (four intervals early) to 16,000 us
    assert by_name["solve (solver)"] == 4_100_000 + 1_400_000
    assert sum(by_name.values()) == 20_000_000
    assert by_name[NOT_RECORDED] > 12_000_000


def test_host_bound_names_the_function(tmp_path: Path) -> None:
    export = _busy(0, 20_000)
    for time in range(100, 20_000, 100):
        export.sample(time, ("memcpy", LIBC), ("fill(float*)" if time < 15_000 else "check", MAIN), *OUTER)
    (finding,) = judge(load_rule("host_bound"), read_one(tmp_path, export)).findings
    assert finding.evidence[0]["host_was_in"] == "fill(float*) (solver)"
    shares = {row["host_was_in"]: row["idle_ns"] for row in finding.evidence}
    assert shares["fill(float*) (solver)"] > 2.5 * shares["check (solver)"]


def test_samples_go_to_the_trace_of_their_process(tmp_path: Path) -> None:
    export = Export()
    for pid in (100, 200):
        export.call("cudaLaunchKernel_v7000", 0, 5, correlation=1, pid=pid)
        export.kernel("k", 5, 50, correlation=1, pid=pid)
        export.sample(20, (f"work_{pid}", MAIN), pid=pid)
    export.sample(30, ("elsewhere", MAIN), pid=300)
    first, second = read(tmp_path, export)
    assert (_stack(first, 0), _stack(second, 0)) == (["work_100 (solver)"], ["work_200 (solver)"])
    assert (len(first.rows["samples"]), len(second.rows["samples"])) == (1, 1)
    assert first.source.events_unplaced == 1


def test_a_sample_without_a_stack_is_kept(tmp_path: Path) -> None:
    export = _busy(0, 500)
    export.sample(100)
    trace = read_one(tmp_path, export)
    assert trace.rows["samples"]["frame"].tolist() == [MISSING]


def test_a_call_recorded_with_its_stack_is_in_an_op_named_by_the_programs_function(tmp_path: Path) -> None:
    export = _busy(1000, 9000)
    for table, chain, (start, end) in (("OSRT", 1, (1200, 8000)), ("OSRT", 2, (8000, 8500))):
        export.add(
            f"{table}_API", start=start * 1000, end=end * 1000, globalTid=tid_of(100, 1), nameId=export.text("read"),
            callchainId=chain,
        )  # fmt: skip
    export.chain("OSRT_CALLCHAINS", 1, ("read", LIBC), ("load_mesh()", MAIN), *OUTER)
    export.chain("OSRT_CALLCHAINS", 2, ("read", LIBC), ("0x7f", DRIVER))
    export.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][1]["callchainId"] = 7
    export.chain("CUDA_CALLCHAINS", 7, ("cudaLaunchKernel", DRIVER), ("solve()", MAIN), *OUTER)
    trace = read_one(tmp_path, export)
    slices = trace.frame("slices")
    ops = slices[slices["kind"] == SliceKind.OP]
    assert sorted(ops["name"]) == ["load_mesh() (solver)", "solve() (solver)"]
    assert trace.frame("kernels")["op"].notna().tolist() == [False, True]
    (finding,) = judge(load_rule("host_bound"), trace).findings
    assert [row["host_was_in"] for row in finding.evidence[:1]] == ["load_mesh() (solver): read"]
    assert "read" in {row["host_was_in"] for row in finding.evidence}
