"""Where an output goes that was asked for by its path: what may be replaced there, and what only written to."""

from __future__ import annotations

import os
from pathlib import Path


def is_stream(target: Path) -> bool:
    """Whether a device, a pipe or a socket stands there: ``/dev/stdout``, ``/dev/null``, ``>(gzip)``.

    Such a thing is written to as it is. A file that were renamed onto it would take its place, for root in a container
    even that of ``/dev/null``.
    """
    return target.exists() and not target.is_file() and not target.is_dir()


def resolve_links(target: Path) -> Path:
    """The file a link leads to, so that it is the file that is replaced and not the link."""
    return Path(os.path.realpath(target))
