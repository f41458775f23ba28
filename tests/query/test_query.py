"""SQL over traces: what can be read, that the ready queries say what the trace holds, and what is refused."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfscope.analyzers.query import QUERIES, Database, table_names
from perfscope.analyzers.time import step_accounts
from perfscope.commands.query import query
from perfscope.model.errors import NotStartedError, UsageError
from perfscope.model.trace import CallKind, CopyKind, HostMemory
from perfscope.model.version import install_command
from tests.build import TraceBuilder
from tests.critical_path.machine import Op, run


def database() -> Database:
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    builder.op("aten::mm", 0, 100, external_id=1)
    builder.launched("gemm", 10, 20, 400, correlation=1, external_id=1)
    builder.launched("gemm", 30, 401, 500, correlation=2, external_id=1)
    builder.call("cudaMemcpyAsync", 100, 105, kind=CallKind.COPY, correlation=3)
    builder.copy("Memcpy HtoD", 510, 610, correlation=3, size=1_000_000, kind=CopyKind.HOST_TO_DEVICE,
                 host_memory=HostMemory.PINNED)  # fmt: skip
    builder.op("aten::item", 110, 700)
    builder.call("cudaStreamSynchronize", 120, 690, kind=CallKind.SYNC)
    return Database([builder.build()])


def test_kernels_by_name() -> None:
    (row,) = database().query(QUERIES["kernels"].sql).itertuples()
    assert (row.kernel, row.ms, row.calls, row.percent) == ("gemm", pytest.approx(0.479), 2, 100)


def test_sums_of_whole_numbers_are_whole() -> None:
    """Sums have 128 bits in the database; one that no float holds keeps its digits as text."""
    answer = database().query(
        "select sum(end_ns - start_ns) as ns, count(*) as calls, sum(9007199254740993) as large from kernels"
    )
    assert answer.astype(str).to_numpy().tolist() == [["479000", "2", "18014398509481986"]]


def test_whole_numbers_stay_whole_beside_missing_ones() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 50, external_id=1)
    builder.python("train.py(12): step", 0, 60)
    builder.launched("gemm", 10, 20, 30, correlation=1, external_id=1)
    builder.op("aten::mm", 100, 150, external_id=2)
    builder.launched("other", 110, 120, 130, correlation=2, external_id=2)
    answer = Database([builder.build()]).query("select line from ops order by line")
    assert (str(answer["line"].dtype), answer["line"].isna().sum(), answer["line"][0]) == ("Int64", 1, 12)


def test_ops_have_their_device_time() -> None:
    (row,) = database().query(QUERIES["ops"].sql).itertuples()
    assert (row.name, row.device_ms, row.works) == ("aten::mm", pytest.approx(0.479), 2)


def test_copies_have_a_direction_and_what_they_reached() -> None:
    (row,) = database().query(QUERIES["copies"].sql).itertuples()
    assert (row.kind, row.host_memory, row.gb_per_s) == ("host_to_device", "pinned", 10)


def test_waits_have_the_op_around_them() -> None:
    (row,) = database().query(QUERIES["waits"].sql).itertuples()
    assert (row.call, row.inside, row.ms) == ("cudaStreamSynchronize", "aten::item", pytest.approx(0.57))


def test_an_idle_stream_waits_for_the_host_or_in_its_queue() -> None:
    (row,) = database().query(QUERIES["idle_streams"].sql).itertuples()
    assert (row.works, row.host_wait_ms, row.queued_wait_ms) == (3, 0, pytest.approx(0.011))


def test_the_queue_is_counted_at_launches() -> None:
    (row,) = database().query(QUERIES["queue"].sql).itertuples()
    assert (row.launches, row.most_waiting) == (3, 2)


def test_pairs_of_kernels_are_counted() -> None:
    trace, _ = run([Op("a", 5, 50), Op("b", 5, 50)] * 3)
    answer = Database([trace]).query(QUERIES["sequences"].sql)
    assert answer[["first", "second", "times"]].values.tolist() == [["k_a", "k_b", 3], ["k_b", "k_a", 2]]


def test_the_account_sums_to_the_step() -> None:
    trace, length = run([Op("a", 50, 100), Op("b", 5, 50, waits=True)])
    answer = Database([trace]).query("select sum(time_ns) as ns from accounts")
    assert answer.ns.tolist() == [trace.fact(step_accounts)[0].whole_ns] == [length * 1000]


def test_the_critical_path_sums_to_the_step() -> None:
    trace, length = run([Op("a", 50, 100), Op("b", 5, 50, waits=True)])
    assert Database([trace]).query("select sum(duration_ns) as ns from critical_path").ns.tolist() == [length * 1000]


def test_every_ready_query_answers_and_every_table_can_be_read() -> None:
    held = Database([run([Op("a", 50, 100, waits=True)])[0], TraceBuilder(rank=1).build()])
    for ready in QUERIES.values():
        held.query(ready.sql)
    for name in table_names():
        assert len(held.query(f"select * from {name}").columns), name


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_csv('/etc/passwd')",
        "select * from '/etc/passwd'",
        "copy (select 1) to '/tmp/perfscope-query-test.csv'",
        "attach '/tmp/perfscope-query-test.db'",
        "install httpfs",
        "set enable_external_access = true",
        "select * from nothing",
        "selec 1",
    ],
)
def test_nothing_else_can_be_read_or_written(sql: str) -> None:
    with pytest.raises(UsageError, match=r"^query: [^\n]*$"):
        database().query(sql)
    assert not Path("/tmp/perfscope-query-test.csv").exists()


def test_without_duckdb_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(NotStartedError, match=re.escape(install_command("sql"))):
        Database([])


class TestCommand:
    FILE = "fixtures/cpu-moe-loop"

    def answer(self, *arguments: str) -> str:
        done = CliRunner().invoke(query, list(arguments), catch_exceptions=False, standalone_mode=False)
        return done.output

    def test_csv_has_no_formulas(self) -> None:
        assert self.answer(self.FILE, "select '=1+1' as f, -3 as n", "--format", "csv") == "f,n\n'=1+1,-3\n"

    def test_text_csv_and_json(self) -> None:
        sql = "select count(*) as steps from steps"
        assert self.answer(self.FILE, sql).split() == ["steps", "3"]
        assert self.answer(self.FILE, sql, "--format", "csv") == "steps\n3\n"
        assert self.answer(self.FILE, sql, "--format", "json").split() == ["[", "{", '"steps":3', "}", "]"]

    def test_rows_that_are_not_shown_are_counted(self) -> None:
        assert "2 more rows; --limit 0 shows all" in self.answer(self.FILE, "select * from steps", "--limit", "1")

    def test_ready_queries_and_tables_are_listed(self) -> None:
        assert all(name in self.answer() for name in QUERIES)
        assert "accounts: source, rank, device" in self.answer("--tables")

    def test_a_name_that_is_none_is_a_usage_error(self) -> None:
        with pytest.raises(UsageError, match="no query is called kernals"):
            self.answer(self.FILE, "kernals")

    def test_an_answer_without_rows_says_what_was_not_recorded(self, capsys: pytest.CaptureFixture[str]) -> None:
        query.main([self.FILE, "kernels"], standalone_mode=False)
        assert capsys.readouterr().err == "perfscope: no rows: nothing was recorded for kernel_names, kernels\n"


def test_a_statement_without_an_answer_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="returns no rows"):
        database().query("/* nothing */")


def test_values_that_frames_cannot_hold_are_text() -> None:
    answer = database().query(
        "select 'a'::blob as raw, '101'::bit as bits, true as yes, (2::hugeint ** 80)::hugeint as n"
    )
    assert answer.to_dict("records") == [{"raw": "61", "bits": "101", "yes": True, "n": str(2**80)}]


def test_names_of_columns_are_cleaned_and_differ() -> None:
    assert list(database().query('select 1 as "a\x1b[31mb", 2 as c, 3 as c').columns) == ["ab", "c", "c_2"]


def test_a_query_that_takes_too_long_is_stopped() -> None:
    with pytest.raises(UsageError, match=r"stopped after 0\.2 s"):
        database().query("select count(*) from range(1000000000) a, range(1000000) b where a.range > b.range", 0.2)
    with pytest.raises(UsageError, match=r"; use LIMIT$"):
        database().query("select count(*) from range(1000000000) a, range(1000000000) b", 0.1, "use LIMIT")
