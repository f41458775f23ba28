"""Data of runs that outlives their folders: numbers, findings, baselines; in a file or on a server."""

from perfscope.plugins.history.store.database import LATEST, address
from perfscope.plugins.history.store.exchange import check_name, export, import_file, looks_like_export
from perfscope.plugins.history.store.packs import fetch, pack, unpack
from perfscope.plugins.history.store.runs import RunStore

__all__ = [
    "LATEST",
    "RunStore",
    "address",
    "check_name",
    "export",
    "fetch",
    "import_file",
    "looks_like_export",
    "pack",
    "unpack",
]
