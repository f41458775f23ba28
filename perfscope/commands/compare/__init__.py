"""``perfscope compare``: two runs, two commits launched in turns, or two commits compiled."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfscope.commands.completion import complete_runs
from perfscope.commands.group import VerbGroup
from perfscope.model.errors import did_you_mean

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

FORMS = {
    "commits": "perfscope.commands.compare.commits:ab",
    "programs": "perfscope.commands.compare.programs:programs",
    "runs": "perfscope.commands.compare.runs:runs",
}
"""Sub-command -> ``module:attribute``."""

DEFAULT = "runs"

FLAGS = {"--ab": "commits", "--programs": "programs"}
"""Earlier spellings, anywhere before the program begins."""


class CompareGroup(VerbGroup):
    """``compare BASE HEAD`` is ``compare runs BASE HEAD``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the sub-command first where it was left out or asked for by a flag."""
        ours = args[: args.index("--")] if "--" in args else args
        flag = next((word for word in ours if word in FLAGS), None)
        if flag is not None:
            index = args.index(flag)
            args = [FLAGS[flag], *args[:index], *args[index + 1 :]]
        elif args and args[0] not in (*FORMS, "help", *ctx.help_option_names):
            hint = did_you_mean(args[0], FORMS)
            if hint and not ctx.resilient_parsing and not _is_there(args[0]):
                ctx.fail(f"{args[0]}: no such run, file, folder or command{hint}")
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Sub-commands, and runs, which are allowed in the same place."""
        found = super().shell_complete(ctx, incomplete)
        return found or complete_runs(ctx, click.Argument(["base"]), incomplete)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """The usage line has the short form, too."""
        return ["BASE HEAD | runs | commits | programs", "[ARGS]..."]

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the sub-commands, the usual one first."""
        return [DEFAULT, *(name for name in FORMS if name != DEFAULT)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The sub-command, imported now."""
        module, _, attribute = FORMS.get(cmd_name, "").partition(":")
        command = getattr(importlib.import_module(module), attribute) if module else None
        return command if isinstance(command, click.Command) else None


def _is_there(word: str) -> bool:
    """Whether a file, a folder or a run is called so."""
    from perfscope.model.documents.run_folders import RUNS_FOLDER, is_named

    return Path(word).exists() or is_named(word, Path(RUNS_FOLDER))


@click.group(
    cls=CompareGroup,
    epilog="`perfscope compare BASE HEAD` is `perfscope compare runs BASE HEAD`; a run called like a sub-command is "
    "./NAME. `--ab` and `--programs` in place of `commits` and `programs` still work.",
)
def compare() -> None:
    """Show changes from BASE to HEAD, their certainty, and their lines in the code."""
