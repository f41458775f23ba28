"""Builds the source archive and the wheel; both are read, and the wheel's command is started."""

from __future__ import annotations

import gzip
import inspect
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from importlib.metadata import EntryPoint, version
from pathlib import Path, PurePosixPath

import pytest

import perfscope
from perfscope.analyzers.engine import Analysis, analyze
from perfscope.analyzers.readers.load import load_all, load_one
from perfscope.dashboards.report import REPORTS
from tests.build import TraceBuilder
from tests.conftest import REPOSITORY

NOT_SHIPPED = (".gitkeep",)
LIBRARY = "perfscope/native/_core.abi3.so"
"""Built where a Rust compiler is; its sources are in the source archive alone."""


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    (path,) = built.glob("*.whl")
    return zipfile.ZipFile(path)


def shipped_files() -> set[str]:
    """Expected content of the package folder in the wheel: code and data, no caches."""
    found = {
        path.relative_to(REPOSITORY).as_posix()
        for path in (REPOSITORY / "perfscope").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name not in NOT_SHIPPED
    }
    found = {name for name in found if not re.match(r"perfscope/native/(src/|target/|Cargo\.|_core)", name)}
    assert "perfscope/py.typed" in found
    return found


def test_the_wheel_holds_the_package_folder_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    files = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert files == shipped_files()


@pytest.mark.slow
def test_the_wheel_from_the_archive_has_the_library_where_a_compiler_is(released: Path) -> None:
    (path,) = released.glob("*.whl")
    files = {name for name in zipfile.ZipFile(path).namelist() if ".dist-info/" not in name}
    assert files - {LIBRARY} == shipped_files()
    assert (LIBRARY in files) == (shutil.which("cargo") is not None)


def test_the_wheel_ships_no_tests_recordings_or_links(wheel: zipfile.ZipFile) -> None:
    roots = {PurePosixPath(name).parts[0] for name in wheel.namelist()}
    assert {root for root in roots if not root.endswith(".dist-info")} == {"perfscope"}
    links = [info.filename for info in wheel.infolist() if (info.external_attr >> 16) & 0o170000 == 0o120000]
    assert links == []


def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    (dist_info,) = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    metadata = message_from_bytes(wheel.read(f"{dist_info}/METADATA"))
    assert metadata["Name"] == "perfscope"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Provides-Extra") or []) == {
        "torch", "jax", "ui", "cluster", "s3", "perfetto", "nsys", "parquet", "sql", "store", "tensorboard", "viewer",
        "mcp", "otlp", "all", "docs", "test", "aot-amd", "aot-gpu", "aot-torch", "aot-tpu", "workloads",
    }  # fmt: skip
    core = [line for line in metadata.get_all("Requires-Dist") or [] if "extra ==" not in line]
    assert not [line for line in core if line.startswith(("torch", "jax", "dash", "plotly"))], core
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())


def test_the_wheels_command_starts(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    (dist_info,) = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    entry_points = wheel.read(f"{dist_info}/entry_points.txt").decode()
    assert "perfscope = perfscope.__main__:main" in entry_points
    entry = EntryPoint(name="perfscope", value="perfscope.__main__:main", group="console_scripts")
    wheel.extractall(tmp_path)
    start = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv = ['perfscope', '--help']\n"
        f"import {entry.module} as module\n"
        f"assert module.__file__.startswith({str(tmp_path)!r}), module.__file__\n"
        f"module.{entry.attr}()"
    )
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Usage: perfscope" in done.stdout


def test_the_source_archive_can_be_tested(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"tests/build.py", "tests/conftest.py", "tests/house/test_package.py", "pyproject.toml", "LICENSE"} <= names
    assert shipped_files() <= names
    assert not [name for name in names if "__pycache__" in name]


NAMES = [
    "Analysis", "CompiledFor", "Cost", "Finding", "Outcome", "Trace", "__version__", "analyze", "compare",
    "compile_for", "figures", "kernel_cost", "load", "load_all", "profile", "region", "step", "trace_handler",
]  # fmt: skip


def test_the_names() -> None:
    assert sorted(perfscope.__all__) == NAMES
    assert set(NAMES) <= set(dir(perfscope))
    for name in NAMES:
        assert getattr(perfscope, name) is getattr(perfscope, name)
        assert getattr(perfscope, name).__doc__


def test_they_are_the_same_things_as_in_their_modules() -> None:
    assert perfscope.load is load_one
    assert perfscope.load_all is load_all
    assert perfscope.analyze is analyze
    assert perfscope.Analysis is Analysis
    assert perfscope.__version__ == version("perfscope")


def test_no_other_name() -> None:
    with pytest.raises(AttributeError, match="module 'perfscope' has no attribute 'record'"):
        perfscope.record  # noqa: B018


def test_every_public_name_has_a_home_and_every_home_is_public() -> None:
    source = inspect.getsource(perfscope)
    for name in set(NAMES) - {"__version__", "figures"}:
        assert f" as {name}\n" in source, f"{name} is not declared for type checkers"


def test_from_trace_to_findings() -> None:
    builder = TraceBuilder()
    builder.launched("k", 0, 10, 20, correlation=1)
    analysis = perfscope.analyze(builder.build(), rules=[])
    assert isinstance(analysis, perfscope.Analysis)
    assert analysis.devices[0].busy_ns == 10_000
    assert "perfscope" in analysis._repr_html_()


@pytest.mark.corpus
def test_the_tour(corpus: Path) -> None:
    trace = perfscope.load(corpus / "kineto" / "TraceLens__resnet_act_checkpoint.json.gz")
    assert {"start_ns", "end_ns", "name", "device", "stream"} <= set(trace.kernels.columns)
    analysis = perfscope.analyze(trace)
    assert {outcome.status for outcome in analysis} <= {"flagged", "clean", "abstained"}
    assert "MI300X" in trace._repr_html_()


def test_memory_of_a_run() -> None:
    run = Path(__file__).parents[2] / "fixtures" / "cpu-attention-sdpa"
    trace = perfscope.load(run)
    events = json.loads(gzip.decompress((run / "rank00000" / "detail.pt.trace.json.gz").read_bytes()))["traceEvents"]
    recorded = [event["args"]["Bytes"] for event in events if event["name"] == "[memory]"]
    assert sorted(trace.memory["bytes"]) == sorted(recorded)
    assert len(recorded) > 100
    assert "memory (detail pass)" in trace._repr_html_()


HEAVY = ("torch", "jax", "numpy", "pandas", "scipy", "dash", "plotly", "rich", "msgspec")
NOT_FOR_A_TRACE = ("asyncio", "ssl", "sqlite3", "duckdb", "jinja2", "google.protobuf", "xml.sax", "unittest", "fsspec")
NOT_IN_A_TRACE = (
    "perfscope.analyzers.hlo.module", "perfscope.analyzers.programs", "perfscope.analyzers.predict",
    "perfscope.analyzers.plans", "perfscope.plugins.memory_advice.plans",
    "perfscope.analyzers.ops.rules.unfused_ops.graph",
    "perfscope.analyzers.torch_compile.rules.graph_break", "perfscope.plugins.numerics.rules.nonfinite",
    "perfscope.analyzers.readers.compiled", "perfscope.model.documents.torch_plan", "perfscope.model.compile_log",
    "perfscope.model.op_graph", "perfscope.model.documents.flight_recorder",
)  # fmt: skip
"""Modules for compiled programs, plans, logs and other recordings."""
FRAMEWORKS = ("torch", "jax", "pandas", "scipy", "dash", "plotly")

HELP = "import sys\nfrom perfscope.__main__ import run\nassert run(['--help']) == 0"


def loaded_by(program: str, watched: tuple[str, ...]) -> list[str]:
    """Which of the watched packages a fresh interpreter holds after the program."""
    tail = f"\nimport sys\nprint('LOADED', *[name for name in {watched!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program + tail], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[-1].split()[1:]


@pytest.mark.parametrize(
    "program",
    [
        "import perfscope",
        "import perfscope; dir(perfscope)",
        "import perfscope.commands",
        "import perfscope.commands.group, perfscope.__main__",
        HELP,
        HELP.replace("['--help']", "['analyze', '--help']"),
        HELP.replace("['--help']", "['--version']"),
    ],
)
def test_starting_up_loads_nothing_heavy(program: str) -> None:
    assert loaded_by(program, HEAVY) == []


@pytest.mark.parametrize(
    "program",
    [
        "import perfscope.profiler",
        "import perfscope; perfscope.step; perfscope.region",
        "import perfscope; perfscope.analyze; perfscope.load; perfscope.Finding",
        "import perfscope.analyzers.readers.load; from perfscope.dashboards.report import html_report",
    ],
)
def test_no_framework_before_it_is_needed(program: str) -> None:
    assert loaded_by(program, FRAMEWORKS) == []


def test_analyzing_a_trace_loads_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text(
        '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]}'
    )
    program = f"from perfscope.__main__ import run\nassert run(['analyze', '-q', '--no-cache', {str(trace)!r}]) == 0"
    assert loaded_by(program, (*FRAMEWORKS, *NOT_FOR_A_TRACE, "numpy", "msgspec")) == ["numpy", "msgspec"]
    output = tmp_path / "report.json"
    program = (
        f"from perfscope.__main__ import run\nassert run(['analyze', '-q', {str(trace)!r}, '-o', {str(output)!r}]) == 0"
    )
    assert loaded_by(program, tuple(REPORTS.values())) == [REPORTS["json"]]


def test_analyzing_a_trace_loads_no_module_of_other_recordings(tmp_path: Path) -> None:
    spans = [
        ("cpu_op", "aten::mm", 0, 20, {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}),
        ("cuda_runtime", "cudaLaunchKernel", 5, 5, {"correlation": 1}),
        ("kernel", "ampere_sgemm_64x64", 15, 80, {"device": 0, "stream": 7, "correlation": 1}),
        ("user_annotation", "ProfilerStep#1", 0, 100, {}),
    ]
    events = [
        {"ph": "X", "cat": kind, "name": name, "ts": start, "dur": length, "pid": 1, "tid": 1, "args": more}
        for kind, name, start, length, more in spans
    ]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": events}))
    program = f"from perfscope.__main__ import run\nassert run(['analyze', '-q', '--no-cache', {str(trace)!r}]) == 0"
    assert loaded_by(program, NOT_IN_A_TRACE) == []
    rest = "from perfscope.analyzers.registry import RULES, load_rule\nlist(map(load_rule, RULES))"
    assert "perfscope.analyzers.programs" in loaded_by(rest, NOT_IN_A_TRACE)


def test_an_eager_import_is_noticed() -> None:
    assert loaded_by("import perfscope, plotly", HEAVY) != []
    assert "numpy" in loaded_by("import perfscope.model.trace", HEAVY)


NAME = re.compile(r"[A-Za-z0-9._-]+")
BLOCKED = """
import sys

class Missing:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing)
import pytest
sys.exit(pytest.main())
"""


def recipe(command: str) -> str:
    """The line of the oldest jax's recipe in the Makefile that starts so."""
    found = [line.strip() for line in (REPOSITORY / "Makefile").read_text().splitlines() if line.startswith(command)]
    assert len(found) == 1, found
    return found[0]


def absent() -> set[str]:
    """Modules with the names of packages that only the whole environment of the tests has."""
    there = recipe("\t$(OLDEST)/bin/python -m pip install")
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    packages = {match.group().lower() for asked in extras["test"] if (match := NAME.match(asked))} | {"torch"}
    missing = {name.replace("-", "_") for name in packages - {"setuptools"} if f"'{name}>" not in there}
    assert "pytest" not in missing
    assert "playwright" in missing
    return missing


def collected(paths: list[str], without: set[str]) -> subprocess.CompletedProcess[str]:
    """Pytest's look at the tests of jax in ``paths``, in a fresh interpreter where some modules are not to be found."""
    program = f"MISSING = {sorted(without)!r}\n{BLOCKED}"
    options = ["-q", "--collect-only", "-p", "no:cacheprovider", "-m", "jax"]
    return subprocess.run(
        [sys.executable, "-c", program, *options, *paths], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_no_test_file_of_jax_needs_what_is_not_installed_there() -> None:
    paths = recipe("\t$(OLDEST)/bin/python -m pytest").split("-rs")[1].split()
    assert "tests/jax_capture" in paths
    done = collected(paths, absent())
    assert done.returncode == 0, done.stdout[-2000:]
    assert "tests/jax_capture/test_session.py" in done.stdout


def test_a_missing_module_fails_the_collection() -> None:
    done = collected(["tests/plugins/ahead/test_torch_peak.py"], {"msgspec"})
    assert done.returncode != 0, done.stdout[-2000:]
    assert "No module named 'msgspec'" in done.stdout + done.stderr
