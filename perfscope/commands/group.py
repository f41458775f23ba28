"""``perfscope``: a click group whose verbs are imported when they are called, listed by task."""

from __future__ import annotations

import inspect
from typing import Any

import click

from perfscope.commands import COMMANDS, TASKS
from perfscope.commands.options import Flags
from perfscope.model.errors import PerfscopeError, did_you_mean
from perfscope.model.plugins import load, named, plugins
from perfscope.model.version import package_version

FIRST_CONTACT = (
    ("perfscope run train.py", "Profile a program: what costs time in it."),
    ("perfscope analyze trace.json.gz", "The same for a trace that you have."),
    ("perfscope serve latest", "Timeline and details in the browser."),
    ("perfscope compare BASE HEAD", "Changes between two runs, and their places."),
    ("perfscope explain host_sync", "Findings of a rule, and how to fix them."),
    ("perfscope doctor", "Captures that are possible on this machine."),
)
"""Examples that `perfscope` alone prints."""


class PipeClosedError(Exception):
    """The reader of our output went away. Click would take a ``BrokenPipeError`` for itself and exit with 1."""


class VerbGroup(click.Group):
    """A group that suggests names for a typo, lists its verbs in whole sentences and shows its help without a verb."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Without a verb: the help, as an answer and not as an error. ``help VERB`` is ``VERB --help``."""
        if ctx.resilient_parsing:  # a shell completes
            return super().parse_args(ctx, args)
        if not args:
            click.echo(self.get_short_help(ctx))
            ctx.exit(0)
        if args[0] == "help" and self.get_command(ctx, "help") is None:
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the group's verbs and of those that plug-ins add (``advise precision``), sorted."""
        return sorted({*super().list_commands(ctx), *self._added()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb's command; that of a plug-in is imported now. ``None`` for an unknown verb."""
        home = self._added().get(cmd_name)
        return super().get_command(ctx, cmd_name) if home is None else command_at(home, f"{self.name} {cmd_name}")

    def _added(self) -> dict[str, str]:
        start = f"{self.name} "
        return {name.removeprefix(start): home for name, home in named("commands").items() if name.startswith(start)}

    def get_short_help(self, ctx: click.Context) -> str:
        """The text without a verb."""
        return self.get_help(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb, or an error with the verbs that are spelled like it."""
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"no such command: {args[0]}{did_you_mean(args[0], self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One line or more a verb: the first sentence of its help, whole."""
        for title, names in self.sections(ctx):
            with formatter.section(title):
                formatter.write_dl([(name, _sentence(self.get_command(ctx, name))) for name in names])

    def sections(self, ctx: click.Context) -> list[tuple[str, list[str]]]:
        """(title, names of verbs) in the order of the help."""
        return [("Commands", self.list_commands(ctx))]


def _sentence(command: click.Command | None) -> str:
    """The first sentence of a command's help."""
    if command is None:
        return ""
    return command.short_help or inspect.cleandoc(command.help or "").partition("\n")[0]


def command_at(home: str, verb: str) -> click.Command:
    """Import the command of ``verb`` (``run``, ``compare runs``), with the options that plug-ins add to it.

    ``ImportError`` or ``AttributeError`` if ``home``, ``module:attribute``, is missing.
    """
    command = load(home)
    if not isinstance(command, click.Command):
        raise TypeError(f"{home} is not a click command")
    added = [load(option) for plugin in plugins() for option in plugin.options.get(verb, ())]
    command.params += [option for option in added if option not in command.params]
    return command


class LazyGroup(VerbGroup):
    """Finds verbs in ``COMMANDS`` and in plug-ins. A verb that cannot be imported fails when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all verbs, sorted."""
        return sorted({*COMMANDS, *(name for name in named("commands") if " " not in name)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb's command, imported now; ``None`` for an unknown verb."""
        home = COMMANDS.get(cmd_name) or named("commands").get(cmd_name)
        if home is None:
            return None
        try:
            return command_at(home, cmd_name)
        except (ImportError, AttributeError) as error:
            return _broken(cmd_name, error)

    def get_short_help(self, ctx: click.Context) -> str:
        """The first commands that a user needs."""
        formatter = ctx.make_formatter()
        formatter.write_text(f"perfscope {package_version()}: {self.help}")
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_dl(FIRST_CONTACT, col_max=36)
        formatter.write_paragraph()
        formatter.write_text("`perfscope --help` lists all commands, `perfscope COMMAND --help` explains one.")
        return formatter.getvalue().rstrip("\n")

    def sections(self, ctx: click.Context) -> list[tuple[str, list[str]]]:
        """By task, verbs of plug-ins last in theirs; those without a task come at the end."""
        of_plugins = named("tasks")
        tasks = {task: list(names) for task, names in TASKS.items()}
        listed = {name for names in tasks.values() for name in names}
        for name in self.list_commands(ctx):
            if name not in listed:
                tasks.setdefault(of_plugins.get(name, "Others"), []).append(name)
        return [(task, names) for task, names in tasks.items() if names]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; what click would hide of a closed pipe is passed on to ``main()``."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise PipeClosedError from error


def _broken(name: str, error: Exception) -> click.Command:
    """A placeholder for a verb whose import failed, so that ``--help`` and the other verbs still work."""

    def fail(**_: Any) -> None:
        raise PerfscopeError(f"{name}: this command cannot be loaded: {error}") from error

    return click.Command(
        name,
        callback=fail,
        short_help="(cannot be loaded)",
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )


def _show_version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"perfscope {package_version()}")
        context.exit(0)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with `perfscope run train.py`, or `perfscope analyze trace.json.gz` for a trace that you have.",
)
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Print the version.",
)
@click.pass_context
def cli(context: click.Context) -> None:
    """Show where the time of a PyTorch or JAX program goes, why, and what fixing it would gain."""
    context.ensure_object(Flags)
