"""``perfscope query``: SQL over a run or traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perfscope.commands.completion import complete_runs
from perfscope.commands.options import announce, selection_options, show, verbose_option
from perfscope.model.errors import DONE, UsageError

if TYPE_CHECKING:
    import pandas as pd

FORMATS = ("text", "csv", "json")
MOST_WIDTH = 80
"""Widest column that is written to a pipe or a file without wrapping."""


@click.command()
@click.argument("path", required=False, shell_complete=complete_runs)
@click.argument("sql", required=False)
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True, help="Output format.")
@click.option("--limit", type=click.IntRange(min=0), default=40, show_default=True, help="Rows shown as text; 0: all.")
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), default=300.0, show_default=True, metavar="SECONDS",
    help="Stop the query after this time.",
)  # fmt: skip
@click.option("--tables", is_flag=True, help="List the tables with their columns.")
@selection_options
@verbose_option
def query(
    path: str | None, sql: str | None, form: str, limit: int, timeout: float, tables: bool, verbose: bool,
    steps: str | None, ranks: str | None, time: str | None,
) -> int:  # fmt: skip
    """Answer SQL over the tables of a run, a trace file or a folder of traces.

    SQL is your query, or the name of a ready one: `perfscope query latest op_times`. Without SQL the
    ready ones are listed. Nothing but the traces can be read. The tables are documented in docs/query.md.
    """
    from perfscope.analyzers.query import QUERIES, Database
    from perfscope.analyzers.selection import load_selected, parse_selection

    if tables:
        _show_tables()
    elif path is None or sql is None:
        _show_queries()
    else:
        if " " not in sql.strip() and sql not in QUERIES:
            raise UsageError(f"query: no query is called {sql}; first the traces, then one of {', '.join(QUERIES)}")
        text = QUERIES[sql].sql if sql in QUERIES else sql
        database = Database(load_selected(path, parse_selection(steps, ranks, time)).traces)
        answer = database.query(text, timeout, "--timeout allows more")
        _print(answer, form, limit)
        if answer.empty:
            empty = ", ".join(database.empty_tables(text))
            announce(f"no rows{f': nothing was recorded for {empty}' if empty else ''}")
    return DONE


def _print(answer: pd.DataFrame, form: str, limit: int) -> None:
    if form == "csv":
        click.echo(answer.map(_no_formula).to_csv(index=False), nl=False)
        return
    if form == "json":
        click.echo(answer.to_json(orient="records", date_format="iso", indent=1))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    numbers = [answer[column].dtype.kind in "iuf" for column in answer.columns]
    for column, number in zip(answer.columns, numbers, strict=True):
        table.add_column(str(column), justify="right" if number else "left", overflow="ellipsis", no_wrap=number)
    rows = answer if limit == 0 else answer.head(limit)
    cells = [[cell_text(value) for value in values] for values in rows.itertuples(index=False)]
    for row in cells:
        table.add_row(*map(Text, row))
    widths = (max(map(len, column)) for column in zip(map(str, answer.columns), *cells, strict=True))
    show(table, piped_width=sum(min(width, MOST_WIDTH) + 2 for width in widths))
    if len(rows) < len(answer):
        click.echo(f"{len(answer) - len(rows):,} more rows; --limit 0 shows all")


def _no_formula(value: Any) -> Any:
    """Text that a spreadsheet would run as a formula (``=``, ``+``, ``-`` or ``@`` first) with a quote before it."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def cell_text(value: Any) -> str:
    """A value of a query's answer as text without control characters; numbers have thousands separators."""
    import pandas as pd

    from perfscope.model.untrusted_text import sanitize

    if hasattr(value, "tolist"):  # a list comes as an array
        value = value.tolist()
    if isinstance(value, float) and not pd.isna(value):
        return f"{value:,.3f}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    return "" if not isinstance(value, list) and pd.isna(value) else sanitize(str(value))


def _show_queries() -> None:
    from perfscope.analyzers.query import QUERIES

    click.echo("perfscope query PATH SQL, with SQL of your own or one of these:\n")
    for name, ready in QUERIES.items():
        click.echo(f"  {name:<15} {ready.doc}")
    click.echo("\nperfscope query --tables lists what they read.")


def _show_tables() -> None:
    from perfscope.analyzers.query import table_names, table_of
    from perfscope.analyzers.results import labels_of
    from perfscope.model.trace import TABLES

    for name in table_names():
        if name in TABLES:
            columns = ["source", "rank", "row", *(column.name for column in TABLES[name].columns)]
        else:
            table = table_of(name)
            columns = [*(label for label, *_ in labels_of(table)), *(column.name for column in table.columns)]
        click.echo(f"{name}: {', '.join(columns)}")
