"""The Nsight Systems reader on real exports of six versions: everything in the tables is in the traces, exactly."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from perfscope.analyzers.engine import Analysis, analyze
from perfscope.analyzers.readers.load import load_all
from perfscope.analyzers.time import step_accounts
from perfscope.analyzers.time.device_time import device_times
from perfscope.model.trace import CallKind, CopyKind, Trace
from tests.conftest import corpus_files

pytestmark = pytest.mark.corpus

FILES = corpus_files("nsys_sqlite", "*.sqlite.gz")


def file_of(corpus: Path, part: str) -> Path:
    return next(path for path in (corpus / "nsys_sqlite").iterdir() if part in path.name)


@pytest.fixture(
    scope="module",
    params=[pytest.param(path, marks=pytest.mark.slow) if "jacobi" in path.name else path for path in FILES],
    ids=lambda path: path.name.split(".")[0],
)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[list[Trace], sqlite3.Connection]]:
    """The traces of a file, and the file itself to ask."""
    plain = tmp_path_factory.mktemp("nsys") / "export.sqlite"
    plain.write_bytes(gzip.decompress(request.param.read_bytes()))
    connection = sqlite3.connect(plain)
    yield load_all(request.param), connection
    connection.close()


def query_number(connection: sqlite3.Connection, sql: str) -> int:
    """One number; 0 where the table is absent."""
    table = sql.split(" FROM ")[1].split()[0]
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
        return 0
    return int(connection.execute(sql).fetchone()[0] or 0)


def total(traces: list[Trace], table: str) -> int:
    return sum(len(trace.rows[table]) for trace in traces)


def test_all_files_are_there() -> None:
    if not FILES:
        pytest.skip("no corpus")
    assert len(FILES) == 6


def _calls_by_the_program(connection: sqlite3.Connection) -> int:
    """Calls of the operating system with a frame of the program in their stack; only one file has such stacks."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'OSRT_CALLCHAINS'").fetchone():
        return 0
    return query_number(
        connection,
        "SELECT count(*) FROM OSRT_API WHERE callchainId IN (SELECT c.id FROM OSRT_CALLCHAINS c JOIN StringIds s "
        "ON s.id = c.module WHERE s.value LIKE '%/bin/cuda-cloverleaf')",
    )


def test_every_row_is_read(pair: tuple[list[Trace], sqlite3.Connection]) -> None:
    traces, connection = pair
    count = {
        table: query_number(connection, f"SELECT count(*) FROM {table}")
        for table in (
            "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY",
            "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "NVTX_EVENTS", "OSRT_API",
            "PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD", "COMPOSITE_EVENTS",
        )
    }  # fmt: skip
    assert total(traces, "calls") == count["CUPTI_ACTIVITY_KIND_RUNTIME"]
    assert total(traces, "kernels") == count["CUPTI_ACTIVITY_KIND_KERNEL"]
    assert total(traces, "copies") == count["CUPTI_ACTIVITY_KIND_MEMCPY"] + count["CUPTI_ACTIVITY_KIND_MEMSET"]
    assert total(traces, "sync_records") == count["CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"]
    spans = ("NVTX_EVENTS", "OSRT_API", "PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD")
    assert total(traces, "slices") == sum(count[table] for table in spans) + _calls_by_the_program(connection)
    assert total(traces, "samples") == count["COMPOSITE_EVENTS"]
    assert sum(trace.source.events_read for trace in traces) == sum(count.values())
    assert sum(trace.source.events_unplaced for trace in traces) == 0


@pytest.mark.parametrize(
    ("tables", "part"),
    [
        (("CUPTI_ACTIVITY_KIND_KERNEL",), "kernels"),
        (("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"), "copies"),
        (("CUPTI_ACTIVITY_KIND_RUNTIME",), "calls"),
    ],
)
def test_times_sum_to_those_of_the_tables(
    pair: tuple[list[Trace], sqlite3.Connection], tables: tuple[str, ...], part: str
) -> None:
    traces, connection = pair
    wanted = sum(query_number(connection, f'SELECT sum("end" - start) FROM {table}') for table in tables)
    assert sum(int((trace.rows[part]["end_ns"] - trace.rows[part]["start_ns"]).sum()) for trace in traces) == wanted


def test_bytes_sum_to_those_of_the_tables(pair: tuple[list[Trace], sqlite3.Connection]) -> None:
    traces, connection = pair
    wanted = sum(
        query_number(connection, f"SELECT sum(bytes) FROM CUPTI_ACTIVITY_KIND_{table}")
        for table in ("MEMCPY", "MEMSET")
    )
    assert sum(int(trace.rows["copies"]["bytes"].sum()) for trace in traces) == wanted


def test_busy_time_is_that_of_a_sweep_over_the_rows(pair: tuple[list[Trace], sqlite3.Connection]) -> None:
    traces, connection = pair
    for trace in traces:
        trace.check()
        for device in trace.fact(device_times):
            pid = int(trace.text(int(trace.rows["threads"]["process"][0])))
            rows: list[tuple[int, int]] = []
            for table in ("KERNEL", "MEMCPY", "MEMSET"):
                sql = (
                    f'SELECT start, "end" FROM CUPTI_ACTIVITY_KIND_{table} '
                    f"WHERE deviceId = {device.ordinal} AND (globalPid >> 24) & 0xFFFFFF = {pid}"
                )
                if query_number(connection, f"SELECT count(*) FROM CUPTI_ACTIVITY_KIND_{table}"):
                    rows += connection.execute(sql).fetchall()
            busy, until = 0, -1
            for start, end in sorted(rows):
                busy += max(end - max(start, until), 0)
                until = max(until, end)
            assert device.busy_ns == busy


def test_each_launch_is_the_one_sql_joins(pair: tuple[list[Trace], sqlite3.Connection]) -> None:
    traces, connection = pair
    wanted = query_number(
        connection,
        "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL AS k WHERE EXISTS (SELECT 1 FROM CUPTI_ACTIVITY_KIND_RUNTIME "
        "AS r WHERE r.correlationId = k.correlationId AND r.globalTid >> 24 = k.globalPid >> 24)",
    )
    linked = 0
    for trace in traces:
        kernels, calls = trace.rows["kernels"], trace.rows["calls"]
        held = kernels["call"] >= 0
        linked += int(held.sum())
        assert np.isin(calls["kind"][kernels["call"][held]], [CallKind.KERNEL, CallKind.GRAPH]).all()
        assert (calls["start_ns"][kernels["call"][held]] <= kernels["end_ns"][held]).all()
    assert linked == wanted


def analyzed(corpus: Path, part: str) -> tuple[list[Trace], Analysis]:
    traces = load_all(file_of(corpus, part))
    return traces, analyze(
        traces, ["host_sync", "host_bound", "launch_bound", "pageable_copy", "exposed_communication"]
    )


def test_cloverleaf_waits_after_every_kernel(corpus: Path) -> None:
    (trace,), analysis = analyzed(corpus, "cloverleaf")
    names = [trace.text(int(code)) for code in trace.rows["calls"]["name"]]
    assert names.count("cudaDeviceSynchronize") == len(trace.rows["kernels"]) == 1312
    # The device idles while the host allocates and works on after a wait, and next to nothing in the waits themselves.
    (account,) = trace.fact(step_accounts)
    assert account.total_ns["sync"] < 0.01 * account.whole_ns
    assert account.total_ns["other_host"] > 0.25 * account.whole_ns
    assert {rule: analysis[rule].status for rule in ("host_sync", "host_bound")} == {
        "host_sync": "clean",
        "host_bound": "flagged",
    }


def test_jacobi_copies_between_devices(corpus: Path) -> None:
    (trace,), analysis = analyzed(corpus, "jacobi")
    copies = trace.rows["copies"]
    peers = copies["kind"] == CopyKind.PEER_TO_PEER
    assert int(peers.sum()) == 4004
    assert int(copies["bytes"][peers].sum()) == 262_406_144
    speeds = [float(note.rsplit(": ", 1)[1].removesuffix(" GB/s")) for note in trace.source.notes if "PtoP" in note]
    assert speeds == pytest.approx([16.0, 16.8], abs=0.1)
    assert analysis["host_sync"].status == "flagged"
    assert [trace.text(int(code)) for code in trace.rows["devices"]["name"]] == ["Tesla V100-SXM2-16GB"] * 2


def test_ranks_of_one_file(corpus: Path) -> None:
    for part in ("h100_2gpu", "mfu_2gpu"):
        traces, _ = analyzed(corpus, part)
        assert [trace.source.rank for trace in traces] == [0, 1]
        assert [trace.rows["devices"]["ordinal"].tolist() for trace in traces] == [[0], [1]]
        assert all("host_ops" in trace.recorded for trace in traces)  # torch's emit_nvtx


def test_all_to_all_is_not_hidden(corpus: Path) -> None:
    traces, analysis = analyzed(corpus, "mfu_2gpu")
    (finding,) = analysis["exposed_communication"].findings
    assert finding.subject == "all_to_all"
    assert [len(trace.rows["collectives"]) for trace in traces] == [33, 33]


def test_compiling_leaves_the_device_idle(corpus: Path) -> None:
    _, analysis = analyzed(corpus, "Fuser")
    assert analysis["host_bound"].status == "flagged"
    assert analysis["host_sync"].status == "clean"
