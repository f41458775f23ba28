"""``perfscope comment``: one comment of a pull or merge request that always shows the newest comparison."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import click

from perfscope.commands.options import announce, quiet_option, verbose_option
from perfscope.model.errors import DONE, DataError, UsageError

if TYPE_CHECKING:
    from perfscope.plugins.code_hosts.sticky import CodeHost

HOSTS = ("github", "gitlab")
FROM_FORK = "the change comes from a fork, whose jobs may not comment (docs/ci.md has the way around)"
MOST_MARKDOWN = 16 << 20
"""Bytes of a Markdown file: a comment's limit is lower."""

_LINK = re.compile(r"https://[A-Za-z0-9._~:/?#@!$&*+,;=%-]{1,2000}")
"""Characters allowed in ``[text](...)``: no space, bracket or quote that ends it."""


class _CommentOptions(NamedTuple):
    """The options that select the comment."""

    host: Literal["github", "gitlab"]
    repository: str | None
    number: int | None
    variable: str | None


@click.command()
@click.argument("comparison", required=False, metavar="[COMPARISON.json]")
@click.option("--markdown", metavar="FILE", help="Post this file of your own instead. Not one that others wrote.")
@click.option("--host", type=click.Choice(HOSTS), help="[default: the one whose job this is]")
@click.option("--repository", metavar="NAME", help="OWNER/NAME, or GitLab's project. [default: of the job]")
@click.option("--pr", "number", type=click.IntRange(1), metavar="N", help="Pull or merge request. [that of the job]")
@click.option("--key", default="compare", show_default=True, help="Name of the comment; each key has its comment.")
@click.option("--link", metavar="URL", help="Link to the whole report: the job's artifact.")
@click.option(
    "--token-variable", "variable", metavar="NAME", help="Holds the token. [default: GITHUB_TOKEN or GITLAB_TOKEN]"
)
@click.option("--unless-fork", is_flag=True, help="Post nothing where the change comes from a fork: no job of it may.")
@click.option("--dry-run", is_flag=True, help="Print what would be posted. Needs no token and no network.")
@quiet_option
@verbose_option
def comment(
    *,
    comparison: str | None,
    markdown: str | None,
    host: Literal["github", "gitlab"] | None,
    repository: str | None,
    number: int | None,
    key: str,
    link: str | None,
    variable: str | None,
    unless_fork: bool,
    dry_run: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Post a comparison (`compare --json`) on its pull request, or replace the earlier comment.

    The pull request comes from the variables of the GitHub or GitLab job. The comparison may come from a job that
    is not trusted: it is read as data, and everything in it is escaped.
    """
    from perfscope.dashboards.report.compare.render import marker
    from perfscope.plugins.code_hosts.github import GitHub
    from perfscope.plugins.code_hosts.gitlab import GitLab
    from perfscope.plugins.code_hosts.sticky import compose, post

    marker(key)  # before anything is read: it may be no key
    if link is not None and _LINK.fullmatch(link) is None:
        raise UsageError(f"--link {link}: an https address, without spaces and brackets")
    options = _CommentOptions(host=host or _host(), repository=repository, number=number, variable=variable)
    text = _text(comparison, markdown, key, link)
    body = compose(text, key, (GitHub if options.host == "github" else GitLab).limit, link if markdown else None)
    if dry_run:
        click.echo(body)
        return DONE
    results = (
        _github(options, unless_fork=unless_fork)
        if options.host == "github"
        else _gitlab(options, unless_fork=unless_fork)
    )
    if isinstance(results, str):
        announce(f"not posted: {results}")
        return DONE
    code_host, change = results
    posted = post(code_host, change, key, body)
    if posted.twins:
        announce(f"{posted.twins + 1} comments have the key {key}; the oldest is kept up to date")
    if not quiet:
        click.echo(f"{posted.done}  {_named(options.host, change)}  {posted.place}".rstrip())
    return DONE


def _named(host: str, change: int) -> str:
    return f"#{change}" if host == "github" else f"!{change}"


def _host() -> Literal["github", "gitlab"]:
    """The host whose job this is."""
    if os.environ.get("GITLAB_CI"):
        return "gitlab"
    if os.environ.get("GITHUB_REPOSITORY"):
        return "github"
    raise UsageError("--host github|gitlab: this is a job of neither; say also --repository and --pr")


def _text(comparison: str | None, markdown: str | None, key: str, link: str | None) -> str:
    """The text of the comment, as Markdown."""
    if (comparison is None) == (markdown is None):
        raise UsageError("what is to be posted: COMPARISON.json, or --markdown FILE")
    if comparison is not None:
        from perfscope.dashboards.report.compare.render import render_markdown
        from perfscope.model.documents.comparison import read

        return render_markdown(read(comparison), key=key, url=link)
    assert markdown is not None
    try:
        with Path(markdown).open("rb") as stream:
            content = stream.read(MOST_MARKDOWN + 1)
    except OSError as error:
        raise DataError(f"{markdown}: cannot be read: {(error.strerror or str(error)).lower()}") from error
    if not content.strip() or len(content) > MOST_MARKDOWN:
        raise DataError(f"{markdown}: {'larger than 16 MiB' if content.strip() else 'is empty'}")
    return content.decode("utf-8", "replace")


def _token(variable: str) -> str:
    """The token, from the environment only, because every process of the machine can read a command line."""
    token = os.environ.get(variable, "")
    if not token.strip():
        raise UsageError(f"{variable} is not set: a token that may comment (docs/ci.md)")
    return token


def _github(options: _CommentOptions, *, unless_fork: bool) -> tuple[CodeHost, int] | str:
    """The repository and the pull request; or why there is nothing to do."""
    from perfscope.plugins.code_hosts.github import Event, GitHub, read_event

    event = Event()
    if options.number is None or unless_fork:
        event = read_event(os.environ.get("GITHUB_EVENT_PATH"), os.environ.get("GITHUB_REF"))
    if unless_fork and event.foreign:
        return FROM_FORK
    repository = options.repository or os.environ.get("GITHUB_REPOSITORY")
    if not repository:
        raise UsageError("--repository OWNER/NAME: which one? GITHUB_REPOSITORY is not set")
    number = options.number or event.number
    if number is None and event.run is None:
        raise UsageError("--pr N: what started this job names no pull request")
    if event.run is not None and not event.run.of_pull_request and number is None:
        return "the run that has ended was not of a pull request"
    variable = options.variable or "GITHUB_TOKEN"
    github = GitHub.connect(
        token=_token(variable),
        repository=repository,
        api=os.environ.get("GITHUB_API_URL"),
        graphql=os.environ.get("GITHUB_GRAPHQL_URL"),
        variable=variable,
    )
    if number is None:
        assert event.run is not None
        run = event.run
        number = github.pull_of(sha=run.sha, owner=run.owner, branch=run.branch, head_repository=run.repository)
        if number is None:
            return f"no open pull request ends with {run.sha[:12]}: it was closed, or has newer commits"
    return github, number


def _gitlab(options: _CommentOptions, *, unless_fork: bool) -> tuple[CodeHost, int] | str:
    """The project and the merge request. In a fork's pipeline CI_PROJECT_ID is the fork, the note is the target's."""
    from perfscope.plugins.code_hosts.gitlab import GitLab

    of_target = "CI_MERGE_REQUEST_PROJECT" if os.environ.get("CI_MERGE_REQUEST_PROJECT_ID") else "CI_PROJECT"
    source = os.environ.get("CI_MERGE_REQUEST_SOURCE_PROJECT_ID")
    if unless_fork and source and source != os.environ.get(f"{of_target}_ID"):
        return FROM_FORK
    project = options.repository or os.environ.get(f"{of_target}_ID")
    if not project:
        raise UsageError("--repository PROJECT: which one? CI_PROJECT_ID is not set")
    number = options.number or _number(os.environ.get("CI_MERGE_REQUEST_IID", ""))
    variable = options.variable or "GITLAB_TOKEN"
    web = "" if options.repository else os.environ.get(f"{of_target}_URL", "")
    api = os.environ.get("CI_API_V4_URL")
    return GitLab.connect(token=_token(variable), project=project, api=api, web=web, variable=variable), number


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:10]) > 0):
        raise UsageError("--pr N is missing: this is not a merge request pipeline (CI_MERGE_REQUEST_IID is not set)")
    return int(text)
