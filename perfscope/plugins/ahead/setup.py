"""``perfscope setup``: compilers for machines that are not here."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from perfscope.commands.options import quiet_option, show, verbose_option
from perfscope.model.errors import DataError
from perfscope.plugins.ahead.targets.completion import complete_targets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.plugins.ahead.request import Request
    from perfscope.plugins.ahead.targets.plugins import Kind


@click.command(epilog="PERFSCOPE_PLUGINS names folders that come before these: docs/compile.md.")
@click.argument("targets", nargs=-1, metavar="[h100 | v5e | mi300 | torch]...", shell_complete=complete_targets)
@click.option("--remove", is_flag=True, help="Remove what was installed for them.")
@quiet_option
@verbose_option
def setup(*, targets: tuple[str, ...], remove: bool, quiet: bool, verbose: bool) -> None:
    """Install the compilers that `perfscope compile` needs for a target; without one, list them.

    h100: JAX for NVIDIA GPUs. v5e: JAX for TPUs. mi300: JAX for AMD GPUs. torch: PyTorch for GPUs. Any other name
    that --target takes is one of the first three.

    They fit the installed jax or torch, and are kept in a folder of the user, outside of the environment: only the
    process that compiles loads them.
    """
    from perfscope.plugins.ahead.targets import plugins

    kinds = list(dict.fromkeys(map(kind_of, targets)))
    if not kinds:
        _list()
    for kind in kinds:
        if remove:
            folder = plugins.remove(kind)
            if not quiet:
                click.echo("nothing was installed for it" if folder is None else f"removed {folder}")
        else:
            set_up(kind, quiet=quiet)


def kind_of(name: str) -> Kind:
    """The compiler of a target; ``UsageError`` as `parse_target`."""
    from perfscope.analyzers.devices import parse_target
    from perfscope.plugins.ahead.common.build_key import compiler_kind_of
    from perfscope.plugins.ahead.target_request import target_request
    from perfscope.plugins.ahead.targets.plugins import SETUP_NAMES

    known = {setup_name: kind for kind, setup_name in SETUP_NAMES.items()}
    if name.lower() in known:
        return known[name.lower()]
    return compiler_kind_of("jax", target_request(parse_target(name), configured=False))


def set_up(kind: Kind, *, quiet: bool) -> None:
    """Install the compiler of a kind if it is missing, and print what is ready. ``DataError`` as `install`."""
    from perfscope.plugins.ahead.targets.plugins import SETUP_NAMES, install

    def announce(line: str) -> None:
        if not quiet:
            print(f"perfscope: {line}", file=sys.stderr)

    plugin = install(kind, announce=announce)
    versions = ", ".join(f"{package} {version}" for package, version in plugin.versions.items())
    announce(f"{SETUP_NAMES[kind]}: ready: {versions}")


def set_up_for(request: Request, *, quiet: bool) -> None:
    """Install the compiler for a request to compile."""
    from perfscope.plugins.ahead.common.build_key import compiler_kind

    set_up(compiler_kind(request), quiet=quiet)


def need_compilers(requests: Sequence[Request]) -> None:
    """``DataError`` before anything is begun where not one of the requests could be compiled."""
    from perfscope.plugins.ahead.common.build_key import compiler_kind
    from perfscope.plugins.ahead.targets.plugins import MissingPlugin, find

    compilers = [find(kind) for kind in dict.fromkeys(map(compiler_kind, requests))]
    missing = [compiler for compiler in compilers if isinstance(compiler, MissingPlugin)]
    if missing and len(missing) == len(compilers):
        target = requests[0].target.machine.asked
        raise DataError(f"{target} cannot be compiled for here: {missing[0].reason}; {missing[0].advice()}")


def _list() -> None:
    from rich.table import Table

    from perfscope.plugins.ahead.targets import plugins
    from perfscope.plugins.ahead.targets.checks import NAMES

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("setup", "for", "download"):
        table.add_column(name, no_wrap=True)
    table.add_column("state", overflow="fold")
    for kind, name in plugins.SETUP_NAMES.items():
        result = plugins.find(kind)
        if isinstance(result, plugins.MissingPlugin):
            state = result.reason if result.packages else f"{result.reason}: {result.install}"
        else:
            state = "ready: " + ", ".join(f"{package} {version}" for package, version in result.versions.items())
        table.add_row(name, NAMES[kind], f"{plugins.MEGABYTES[kind]} MB", state)
    show(table)
