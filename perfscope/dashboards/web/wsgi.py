"""The dashboard for a WSGI server with several processes: ``gunicorn 'perfscope.dashboards.web.wsgi:application()'``.

The options of `perfscope serve` come from the environment: ``PERFSCOPE_SERVE_PATHS`` (separated by ``:``),
``PERFSCOPE_SERVE_TOKEN_FILE``, ``PERFSCOPE_SERVE_HOSTS`` (host names that browsers use, separated by ``,``),
``PERFSCOPE_SERVE_BASE_PATH`` and ``PERFSCOPE_SERVE_CACHE``. All processes share what was read, on disk.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfscope.dashboards.web.app import create_app
from perfscope.dashboards.web.server.guard import hosts_of, read_token
from perfscope.dashboards.web.server.shelf import Shelf
from perfscope.dashboards.web.server.workshop import Workshop, default_cache
from perfscope.model.documents.run_folders import RUNS_FOLDER
from perfscope.model.errors import UsageError

PREFIX = "PERFSCOPE_SERVE_"


def application(environment: Mapping[str, str] | None = None) -> Any:
    """The WSGI application. ``UsageError`` without a token file: a server for several users always needs a token."""
    held = os.environ if environment is None else environment
    file = held.get(f"{PREFIX}TOKEN_FILE")
    if not file:
        raise UsageError(f"{PREFIX}TOKEN_FILE: name a file with the token that opens the pages")
    names = tuple(filter(None, held.get(f"{PREFIX}HOSTS", "").split(",")))
    base = f"/{held.get(f'{PREFIX}BASE_PATH', '').strip('/')}/".replace("//", "/")
    paths = held.get(f"{PREFIX}PATHS", RUNS_FOLDER).split(os.pathsep)
    workshop = Workshop(Path(held.get(f"{PREFIX}CACHE") or default_cache()))
    app = create_app(
        Shelf(paths),
        workshop,
        token=read_token(Path(file)),
        hosts=hosts_of("127.0.0.1", names),
        base_path=base,
    )
    return app.server
