"""The account of a job in files: JSON, Markdown, and metrics for node_exporter's textfile collector."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from perfscope.commands.options import write_answers
from perfscope.plugins.job.outlets import Moment


class Files(Struct):
    """Files that are replaced at each moment; ``-`` is stdout, ``None`` is not written."""

    json: str | None
    markdown: str | None
    metrics: str | None
    quiet: bool

    def send(self, moment: Moment) -> None:
        """Write the files; ``DataError`` if one cannot be written."""
        from perfscope.plugins.job.outlets.metrics import textfile

        makers: tuple[tuple[str | None, Callable[[Moment], str]], ...] = (
            (self.json, json_of),
            (self.markdown, markdown_of),
            (self.metrics, textfile),
        )
        write_answers([(file, lambda make=make: make(moment)) for file, make in makers], quiet=self.quiet)  # type: ignore[misc]
        self.quiet = True

    def close(self) -> None:
        """Keep the last files."""


def json_of(moment: Moment) -> str:
    """The account as a JSON document."""
    from perfscope.plugins.job.outlets.json_document import dump

    return dump(moment.account).decode()


def markdown_of(moment: Moment) -> str:
    """The report for a pull request, a ticket or an epilog."""
    from perfscope.dashboards.report.renderers.markdown import open_section, sections_markdown
    from perfscope.plugins.job.report import report_of

    report = report_of(moment.account)
    head = "\n".join(f"- {fact}" for fact in report.facts)
    first, *others = report.sections
    return f"**{report.headline}**\n\n{head}\n\n{open_section(first)}\n\n{sections_markdown(others)}\n"
