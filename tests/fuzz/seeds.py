"""Small intact files of each format: built here, and small real ones of the corpus where it is."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import pickle
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from perfscope.analyzers.readers.load import load_all
from tests.fuzz import mutate
from tests.plugins.kernel_reports.ncu_files import details, launches
from tests.plugins.kernel_reports.other_files import counters, log, rocpd
from tests.ranks.flight_dumps import dump, entry
from tests.readers import rocprof_files, test_hlo, test_jax_memory, test_kineto
from tests.readers.memory_snapshots import Allocator
from tests.readers.nsys import exports
from tests.readers.torch_log.test_torch_trace import TEXT as LOG
from tests.readers.xspace import test_trace_json
from tests.readers.xspace.test_damage import space

MOST_BYTES = 300_000
"""Most bytes of a seed, unpacked: a larger one costs more time than it finds."""
MOST_STORED = 60_000
"""Most stored bytes of a file of the corpus."""


@dataclass(frozen=True)
class Format:
    """Mutated inputs of a reader. ``suffix``: of the file's name; ``corpus``: folders of the corpus."""

    mutate: mutate.Mutation
    suffix: str
    build: Callable[[], bytes]
    corpus: tuple[str, ...] = ()


def _perfetto() -> bytes:
    from perfscope.plugins.exports.export import Subject, export
    from tests.plugins.exports.traces import everything

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "whole.pftrace")
        export(Subject(traces=(everything(),)), "perfetto", path)
        return path.read_bytes()


def _nsys() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return exports.small().write(Path(folder, "small.sqlite")).read_bytes()


def _rocpd() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        rocpd(Path(folder, "small.db"))
        return Path(folder, "small.db").read_bytes()


def _flight() -> bytes:
    return pickle.dumps(dump([entry(number) for number in range(1, 6)]), 2)


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


FORMATS: dict[str, Format] = {
    "flight_recorder": Format(mutate.pickled, "pickle", _flight),
    "hlo_proto": Format(mutate.protobuf, "hlo.pb", lambda: test_hlo.WHOLE, ("hlo_pb", "aot")),
    "hlo_text": Format(mutate.lines, "hlo.txt", test_hlo.TEXT.encode, ("hlo_text", "aot")),
    "jax_memory": Format(
        mutate.protobuf, "prof", lambda: test_jax_memory.profile().SerializeToString(), ("jax_memprof",)
    ),
    "kineto": Format(mutate.json_text, "json", lambda: test_kineto.text(test_kineto.events()).encode(), ("kineto",)),
    "ncu": Format(mutate.lines, "csv", lambda: details(launches()).encode()),
    "nsys": Format(mutate.sqlite, "sqlite", _nsys, ("nsys_sqlite",)),
    "perfetto": Format(mutate.protobuf, "pftrace", _perfetto, ("perfetto",)),
    "rocpd": Format(mutate.sqlite, "db", _rocpd),
    "rocprofv3_counters": Format(mutate.lines, "csv", lambda: counters().encode()),
    "rocprofv3": Format(mutate.json_text, "json", lambda: _json(rocprof_files.document())),
    "rocprofv3_table": Format(mutate.lines, "csv", lambda: rocprof_files.tables()["kernel_trace"].encode()),
    "torch_memory": Format(
        mutate.pickled, "pickle", lambda: pickle.dumps(Allocator(seed=3).run(40).snapshot()), ("torch_mem",)
    ),
    "torch_trace": Format(mutate.lines, "log", lambda: bytes(LOG), ("tlparse",)),
    "tritonparse": Format(mutate.lines, "ndjson", lambda: log().encode()),
    "uncompiled_program": Format(mutate.lines, "txt", test_hlo.TEXT.encode, ("stablehlo",)),
    "xla_trace_json": Format(
        mutate.json_text,
        "trace.json",
        lambda: _json({"metadata": {"highres-ticks": True}, "traceEvents": [*test_trace_json.tpu(), {}]}),
        ("jax_trace_json",),
    ),
    "xplane": Format(mutate.protobuf, "xplane.pb", lambda: space().bytes(), ("xplane",)),
}
"""By reader (`rocprofv3_table`: its other form). Readers of folders (a run, a compiled program, nsys-jax) read these
files."""


@cache
def seeds(reader: str) -> tuple[bytes, ...]:
    """Content of the seeds of a reader, unpacked: the one that is built, then those of the corpus by name."""
    chosen = FORMATS[reader]
    return (chosen.build(), *_of_corpus(chosen))


def _of_corpus(chosen: Format) -> list[bytes]:
    root = os.environ.get("PERFSCOPE_CORPUS")
    if not root:
        return []
    files = [file for folder in chosen.corpus for file in sorted(Path(root, folder).glob("*")) if file.is_file()]
    contents = [_unpacked(file) for file in files if file.stat().st_size <= MOST_STORED]
    return [content for content in contents if 0 < len(content) <= MOST_BYTES and _intact(content, chosen)]


def _intact(content: bytes, chosen: Format) -> bool:
    """Whether it can be read, and has the structure that is changed: folders hold other files too."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"seed.{chosen.suffix}")
        path.write_bytes(content)
        try:
            load_all(path)
            chosen.mutate(content, Random(0))
        except Exception:
            return False
    return True


def _unpacked(file: Path) -> bytes:
    content = file.read_bytes()
    if content.startswith(b"\x1f\x8b") and ".tar" not in file.suffixes:
        return gzip.decompress(content)
    if file.suffix == ".xz":
        return lzma.decompress(content)
    return content
