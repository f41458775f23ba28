"""``perfscope mcp``: the server for agents."""

from __future__ import annotations

import click

from perfscope.commands.options import verbose_option
from perfscope.model.errors import DONE, NotStartedError
from perfscope.model.version import install_command


@click.command()
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER...")
@verbose_option
def mcp(folders: tuple[str, ...], verbose: bool) -> int:
    """Answer an agent's questions about recordings (Model Context Protocol over stdio).

    The agent's program starts it, and only recordings in the given folders can be named. It runs until its input ends.
    docs/agents.md has how to register it.
    """
    from perfscope.plugins.mcp_server.answers import Answers
    from perfscope.plugins.mcp_server.folders import Folders

    answers = Answers(Folders(folders))
    try:
        from perfscope.plugins.mcp_server.server import serve
    except ImportError as error:
        raise NotStartedError(f"mcp needs the package mcp, version 2: {install_command('mcp')}") from error
    serve(answers)
    return DONE
