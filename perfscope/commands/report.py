"""``perfscope report``: a stored comparison in another form, without the recordings it was made from."""

from __future__ import annotations

from functools import partial

import click

from perfscope.commands.compare.outputs import annotate_github, rendered, show_screen
from perfscope.commands.options import STDOUT, quiet_option, spare, verbose_option, write_answers
from perfscope.model.errors import DONE, UsageError

FORMS = ("text", "markdown", "html", "junit", "github")


@click.command()
@click.argument("comparison", metavar="COMPARISON.json")
@click.option("--to", "form", type=click.Choice(FORMS), default="text", show_default=True, help="What to make of it.")
@click.option("-o", "--output", default=STDOUT, metavar="FILE", help="Write it there. [default: stdout]")
@click.option("--key", metavar="NAME", help="Name of a comment, if there are several. [default: compare]")
@click.option("--link", metavar="URL", help="Link to the whole report, for a comment or summary.")
@quiet_option
@verbose_option
def report(
    *, comparison: str, form: str, output: str, key: str | None, link: str | None, quiet: bool, verbose: bool
) -> int:
    """Show a comparison that `perfscope compare --json` wrote, or turn it into another form.

    The file may come from a job that is not trusted: it is read as data, bounded, and everything in it is escaped.
    `--to github` prints annotations and adds to the summary of the job.
    """
    from perfscope.dashboards.report.compare.render import render_text
    from perfscope.model.documents import comparison as compare_document

    if key is not None and form != "markdown":
        raise UsageError("--key: only a comment (--to markdown) has one")
    if link is not None and form not in ("markdown", "github"):
        raise UsageError("--link: only a comment (--to markdown) or a summary (--to github) has one")
    document = compare_document.read(comparison)
    if form == "github":
        if output != STDOUT:
            raise UsageError("-o: annotations go to stdout, where the runner reads them")
        annotate_github(document, link=link)
        return DONE
    if output != STDOUT:
        spare([comparison], [output])
    if form == "text" and output == STDOUT:
        show_screen(document, verbose=verbose)
        return DONE
    if form == "text":
        make = partial(render_text, document, verbose=verbose)
    else:
        options = {name: text for name, text in (("key", key), ("url", link)) if text is not None}
        make = partial(rendered, document, form, **options)
    write_answers([(output, make)], quiet=quiet)
    return DONE
