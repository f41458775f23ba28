"""Tables that travel between processes."""

from __future__ import annotations

import pickle

import numpy as np

from perfscope.model.trace import MISSING, TABLES, Rows, Trace
from perfscope.model.trace.columns import Column, Table
from tests.build import TraceBuilder


def sent(trace: Trace) -> Trace:
    result = pickle.loads(pickle.dumps(trace))
    assert isinstance(result, Trace)
    return result


def test_all_columns_arrive() -> None:
    builder = TraceBuilder()
    for number in range(5):
        builder.launched("k", number * 10, number * 10 + 2, number * 10 + 7, correlation=number)
    trace = builder.build()
    arrived = sent(trace)
    for name, rows in trace.rows.items():
        assert arrived.rows[name].table is TABLES[name]
        for column, values in rows.items():
            assert arrived.rows[name][column].dtype == values.dtype
            np.testing.assert_array_equal(arrived.rows[name][column], values)
            assert not arrived.rows[name][column].flags.writeable


def test_a_column_of_one_value_is_sent_once() -> None:
    rows = Rows(TABLES["slices"], {
        "start_ns": np.arange(10_000), "end_ns": np.arange(10_000) + 1, "name": np.zeros(10_000, np.int32),
        "kind": np.zeros(10_000, np.uint8), "thread": np.zeros(10_000, np.int32),
    })  # fmt: skip
    text = pickle.dumps(rows)
    assert len(text) < 10_000 * 17
    assert (pickle.loads(text)["parent"] == MISSING).all()


def test_nothing_and_not_a_number_and_tables_that_are_not_declared_arrive() -> None:
    column = Column(name="share", dtype="float32", unit="1", doc="share", nullable=True)
    table = Table(name="other", doc="other", columns=(column,))
    for values in ([], [np.nan], [np.nan, np.nan], [np.nan, 1.0]):
        arrived = pickle.loads(pickle.dumps(Rows(table, {"share": values})))
        np.testing.assert_array_equal(arrived["share"], np.array(values, np.float32))
        assert arrived.table == table
