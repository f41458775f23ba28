"""``perfscope compare``: two runs, two commits launched in turns, or two commits compiled."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfscope.commands.completion import complete_runs
from perfscope.commands.group import VerbGroup, command_at
from perfscope.model.errors import did_you_mean
from perfscope.model.plugins import named

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

FORMS = {
    "commits": "perfscope.commands.compare.commits:ab",
    "runs": "perfscope.commands.compare.runs:runs",
}
"""Sub-command of the core -> ``module:attribute``."""

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
        elif args and args[0] not in (*_forms(), "help", *ctx.help_option_names):
            hint = did_you_mean(args[0], _forms())
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
        return [" | ".join(("BASE HEAD", *self.list_commands(ctx))), "[ARGS]..."]

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the sub-commands, the usual one first."""
        return [DEFAULT, *sorted({*_forms()} - {DEFAULT})]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The sub-command, imported now."""
        home = _forms().get(cmd_name)
        return None if home is None else command_at(home, f"compare {cmd_name}")


def _forms() -> dict[str, str]:
    """Sub-commands, also those of plug-ins."""
    added = {name: home for name, home in named("commands").items() if name.startswith("compare ")}
    return {name.removeprefix("compare "): home for name, home in added.items()} | FORMS


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
