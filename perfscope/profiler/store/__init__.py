"""Data of runs that outlives their folders: numbers, findings, baselines; in a file or on a server."""

from perfscope.profiler.store.database import LATEST, address
from perfscope.profiler.store.exchange import check_name, export, import_file, looks_like_export
from perfscope.profiler.store.packs import fetch, pack, unpack
from perfscope.profiler.store.runs import RunStore

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
