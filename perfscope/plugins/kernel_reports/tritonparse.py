"""Logs of tritonparse: newline-delimited JSON (also gzip) of compiled and launched Triton kernels, raw or parsed.

| event | what is kept |
| --- | --- |
| ``compilation`` | name, warps, stages, constants, shared memory, line; of its assembly registers and spills |
| ``launch`` | compiled kernel and grid |
| ``autotune`` | the configurations that were timed |

Intermediate code, arguments, stacks and environment are not kept. tritonparse records no registers; they are read from
the assembly where the log has it: SASS (``TRITONPARSE_DUMP_SASS=1``) of NVIDIA, AMDGCN of AMD.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from perfscope.analyzers.readers import open_bytes
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace
from perfscope.plugins.kernel_reports.occupancy import possible_occupancy
from perfscope.plugins.kernel_reports.record import KernelReport, attach_reports, report_trace, reports_of

FORMAT = "tritonparse"
JOINS = (".ndjson", ".ndjson.gz")

LARGEST = 16 << 30
"""Maximum bytes of a log, unpacked: a compilation has about 100 kB of intermediate code."""

_KINDS = re.compile(rb'\{\s*"event_type"\s*:\s*"(?:compilation|launch|launch_diff|autotune\w*|ir_analysis)"')
_SIGNATURE = re.compile(r"\bdef\s+\w+\s*\((.{0,20000}?)\)\s*(?:->[^:]{0,200})?:", re.DOTALL)
_REGISTERS = re.compile(r"SHI_REGISTERS=(\d{1,4})|\.vgpr_count:\s*(\d{1,4})")
_SPILLS = re.compile(r"\b(?:LDL|STL)(?:\.\w+)*\b")
_SPILLED = re.compile(r"\.[sv]gpr_spill_count:\s*(\d{1,6})")
_MOST_CONSTANTS = 12


class _Target(Struct):
    backend: str = ""
    arch: Any = None
    warp_size: int = 32


class _Metadata(Struct):
    name: str = ""
    hash: str = ""
    num_warps: int | None = None
    num_stages: int | None = None
    num_ctas: int | None = None
    shared: int | None = None
    maxnreg: int | None = None
    target: _Target = field(default_factory=_Target)
    src_constants: dict[str, Any] = {}


class _Source(Struct):
    file_path: str = ""
    start_line: int | None = None
    code: str = ""


class _Payload(Struct):
    metadata: _Metadata = field(default_factory=_Metadata)
    file_content: dict[str, msgspec.Raw] = {}
    python_source: _Source | None = None


class _Event(Struct):
    event_type: str = ""
    name: str | None = None
    payload: _Payload = field(default_factory=_Payload)
    compilation_metadata: _Metadata = field(default_factory=_Metadata)
    grid: list[int] = []
    kernel_name: str = ""
    best_config: str = ""
    configs_timings: dict[str, Any] = {}


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the first line is an event of tritonparse."""
    return _KINDS.match(head.lstrip()) is not None


def read(path: Path) -> Trace:
    """Return a trace with a report per launch, else per compilation. ``DataError`` for a log without either."""
    decoder = msgspec.json.Decoder(_Event)
    compiled: dict[str, KernelReport] = {}
    launched: list[KernelReport] = []
    tuned: dict[str, str] = {}
    broken = 0
    with open_bytes(path, LARGEST) as data:
        for line in iter(io.BytesIO(data).readline if isinstance(data, bytes) else data.readline, b""):
            try:
                event = decoder.decode(line)
            except (ValueError, RecursionError):
                broken += bool(line.strip())
                continue
            if event.event_type == "compilation" and event.payload.metadata.name:
                compiled[event.payload.metadata.hash] = _compiled(event.payload)
            elif event.event_type == "launch" and event.compilation_metadata.name:
                launched.append(_launched(event, compiled))
            elif event.event_type == "autotune" and event.kernel_name:
                tuned[event.kernel_name] = _tuned(event.configs_timings, event.best_config)
    names = {report.name for report in launched}
    reports = [*launched, *(report for report in compiled.values() if report.name not in names)]
    if not reports:
        raise DataError(
            f"{path}: no compilation or launch of a Triton kernel in it{f'; {_broken(broken)}' if broken else ''}"
        )
    reports = [replace(one, tuned=tuned[one.name]) if one.name in tuned else one for one in reports]
    return report_trace(str(path), FORMAT, reports, *([_broken(broken)] if broken else []))


def attach(trace: Trace, path: Path) -> Trace:
    """Return a trace with the reports of a file added."""
    return attach_reports(trace, reports_of(read(path)))


def _broken(count: int) -> str:
    return f"{count:,} line{'' if count == 1 else 's'} of the log {'is' if count == 1 else 'are'} corrupt"


def _compiled(payload: _Payload) -> KernelReport:
    metadata, source = payload.metadata, payload.python_source
    report = replace(_configured(metadata), config=_config(metadata, source))
    if source is not None and source.file_path:
        report = replace(report, line=f"{source.file_path}:{source.start_line or 1}")
    for name, raw in payload.file_content.items():
        if name.endswith((".sass", ".amdgcn")):
            text = msgspec.json.decode(raw)
            report = _with_assembly(report, text) if isinstance(text, str) else report
    share, limit = possible_occupancy(_arch(metadata.target), report)
    return replace(report, possible_occupancy=share, limit=limit)


def _configured(metadata: _Metadata) -> KernelReport:
    warps = metadata.num_warps
    threads = warps * metadata.target.warp_size if warps is not None and 0 < warps <= 64 else None
    shared = metadata.shared if metadata.shared is not None and metadata.shared >= 0 else None
    return KernelReport(name=metadata.name, tool=FORMAT, threads_per_block=threads, shared_bytes=shared)


def _launched(event: _Event, compiled: Mapping[str, KernelReport]) -> KernelReport:
    metadata = event.compilation_metadata
    report = compiled.get(metadata.hash) or replace(_configured(metadata), config=_config(metadata, None))
    sizes = [size for size in event.grid[:3] if 0 < size < 1 << 31]
    return replace(report, blocks=math.prod(sizes) or None if sizes and math.prod(sizes) < 1 << 62 else None)


def _config(metadata: _Metadata, source: _Source | None) -> str:
    """``BLOCK_M 64, BLOCK_N 32, 4 warps, 3 stages``: constants by the names of the source's arguments."""
    constants = []
    signature = None if source is None else _SIGNATURE.search(source.code)
    for place, argument in enumerate([] if signature is None else signature[1].split(",")):
        value = metadata.src_constants.get(f"({place},)")
        if "constexpr" in argument and isinstance(value, int | float | str):
            constants.append(f"{argument.partition(':')[0].strip()} {str(value)[:40]}")
    counts = ((metadata.num_warps, "warp"), (metadata.num_stages, "stage"), (metadata.num_ctas, "CTA"))
    parts = [
        f"{count} {what}{'' if count == 1 else 's'}" for count, what in counts if count and (what, count) != ("CTA", 1)
    ]
    return ", ".join([*constants[:_MOST_CONSTANTS], *parts])


def _arch(target: _Target) -> str:
    """``sm_90`` for 90, ``gfx942`` for itself."""
    arch = target.arch
    return f"sm_{arch}" if isinstance(arch, int) else str(arch)[:20].replace("sm", "sm_").replace("__", "_")


def _with_assembly(report: KernelReport, text: str) -> KernelReport:
    found = _REGISTERS.search(text)
    spilled = [int(match[1]) for match in _SPILLED.finditer(text)]
    registers = None if found is None else int(found[1] or found[2])
    count = sum(spilled) if spilled else sum(1 for _ in _SPILLS.finditer(text))
    return replace(report, registers=registers, spills=float(count))


def _tuned(timings: Mapping[str, Any], best: str) -> str:
    """``best of 12 configurations, 2.3x as fast as their median``: of the median times in ms that autotuning took."""
    times = [time for value in timings.values() if (time := _time(value)) is not None]
    if len(times) < 2 or min(times) <= 0:
        return f"1 of {len(timings):,} configurations" if timings else ""
    return f"best of {len(timings):,} configurations, {median(times) / min(times):.1f}x as fast as their median"


def _time(value: Any) -> float | None:
    time = value[0] if isinstance(value, list) and value else value
    return float(time) if isinstance(time, int | float) and math.isfinite(time) else None
