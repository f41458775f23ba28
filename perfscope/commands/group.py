"""``perfscope``: a click group whose verbs are imported when they are called."""

from __future__ import annotations

import importlib
from typing import Any

import click

from perfscope.commands import COMMANDS
from perfscope.commands.options import Flags
from perfscope.model.errors import PerfscopeError
from perfscope.model.version import package_version


class PipeClosedError(Exception):
    """The reader of our output went away. Click would take a ``BrokenPipeError`` for itself and exit with 1."""


class LazyGroup(click.Group):
    """Finds verbs in ``COMMANDS``. A verb that cannot be imported fails when it is called, not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all verbs, sorted."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb's command, imported now; ``None`` if there is no such verb."""
        home = COMMANDS.get(cmd_name)
        if home is None:
            return None
        module, _, attribute = home.partition(":")
        try:
            command = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            return _broken(cmd_name, error)
        if not isinstance(command, click.Command):
            raise TypeError(f"{home} is not a click command")
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; what click would hide of a closed pipe is passed on to ``main()``."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise PipeClosedError from error


def _broken(name: str, error: Exception) -> click.Command:
    """Stands for a verb whose import failed, so that ``--help`` and the other verbs still work."""

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
    epilog="First contact: `perfscope run train.py`, or `perfscope analyze trace.json.gz` for a trace you have.",
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Print it.")
@click.pass_context
def cli(context: click.Context) -> None:
    """Where the time of a PyTorch or JAX program goes, why, and what fixing it would gain."""
    context.ensure_object(Flags)
