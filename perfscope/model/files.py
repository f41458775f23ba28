"""Writing files: whole or not at all; paths that may be replaced, and streams that are only written to."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def json_bytes(value: Any, *, indent: int | None = None) -> bytes:
    """Encode ``value`` as UTF-8 JSON; a byte of a path or argument that is not UTF-8 becomes ``?``.

    Python keeps such a byte as half of a surrogate pair, which strict JSON readers refuse.
    """
    separators = (",", ":") if indent is None else None
    return json.dumps(value, ensure_ascii=False, indent=indent, separators=separators).encode("utf-8", "replace")


def is_stream(target: Path) -> bool:
    """Whether the path is a device, a pipe or a socket: ``/dev/stdout``, ``/dev/null``, ``>(gzip)``.

    A stream is written directly. A file that were renamed onto it would replace it, for root in a container even
    ``/dev/null``.
    """
    return target.exists() and not target.is_file() and not target.is_dir()


def resolve_links(target: Path) -> Path:
    """The file a link leads to, so that it is the file that is replaced and not the link."""
    return Path(os.path.realpath(target))


def write_atomically(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replace ``path`` by ``content`` in one step: a reader sees the old file or the new one, whole.

    ``durable``: wait for the disk. Without, it survives the death of the process, not of the machine.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with draft.open("wb") as stream:
            stream.write(content)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
