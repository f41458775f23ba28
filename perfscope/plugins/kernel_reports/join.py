"""Reports joined with the kernels of a trace: by name, then by shape of the launch, else by order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.analyzers.time import warm_windows
from perfscope.model.intervals import Int64, covered, union
from perfscope.model.trace import Trace
from perfscope.plugins.kernel_reports.record import KernelReport, base_name, plain_name, reports_of

Key = tuple[str, str, int | None, int | None, str]
"""Tool, name as the tool wrote it, blocks, threads of a block, and configuration of a Triton kernel."""


class Joined(Struct, frozen=True, kw_only=True):
    """Reports of one tool on launches of one kernel with one shape, and their kernels in the trace."""

    reports: tuple[KernelReport, ...]
    rows: Int64
    """Rows of ``kernels`` with time in the steps; empty if the trace has none."""
    time_ns: int
    """Their time in the steps."""
    all_shapes: bool = False
    """The rows are also of other shapes or configurations of the name, because the trace does not tell them apart."""


def joined(trace: Trace) -> tuple[Joined, ...]:
    """Return the reports by kernel and shape, those with most time in the trace first, then by the tool's time."""
    groups: dict[Key, list[KernelReport]] = defaultdict(list)
    places: dict[Key, list[int]] = defaultdict(list)
    launches = Counter[tuple[str, str]]()
    for report in reports_of(trace):
        key = report.tool, report.name, report.blocks, report.threads_per_block, report.config
        groups[key].append(report)
        places[key].append(launches[key[:2]])
        launches[key[:2]] += 1
    keys_of_name, keys_of_shape = Counter(key[:2] for key in groups), Counter(key[:4] for key in groups)
    kernels = trace.rows["kernels"]
    windows = trace.fact(warm_windows)
    inside = covered(union(windows.starts, windows.ends), kernels["start_ns"], kernels["end_ns"])
    by_time = np.argsort(kernels["start_ns"], kind="stable")
    named = {
        name: by_time[np.isin(kernels["name"][by_time], codes)]
        for name, codes in matched(trace, {name for _, name, *_ in groups}).items()
    }
    found = []
    for key, reports in groups.items():
        tool_and_name, blocks, threads = key[:2], key[2], key[3]
        rows, all_shapes = named[key[1]], False
        if len(rows) and blocks is not None and (kernels["blocks"][rows] > 0).all():
            rows = _of_shape(trace, rows, blocks, threads)
            all_shapes = keys_of_shape[key[:4]] > 1
        elif keys_of_name[tool_and_name] > 1 and launches[tool_and_name] == len(rows):
            rows = rows[places[key]]
        else:
            all_shapes = keys_of_name[tool_and_name] > 1
        all_shapes = all_shapes and len(rows) > 0
        rows = np.sort(rows[inside[rows] > 0])
        found.append(Joined(reports=tuple(reports), rows=rows, time_ns=int(inside[rows].sum()), all_shapes=all_shapes))
    return tuple(sorted(found, key=lambda one: (-one.time_ns, -sum(r.duration_ns or 0.0 for r in one.reports))))


def matched(trace: Trace, names: set[str]) -> Mapping[str, npt.NDArray[np.int64]]:
    """Return the codes of the trace's kernels by name of a report: equal apart from spelling.

    A report without template arguments (``--kernel-name-base function``) is of the only kernel with that function.
    """
    by_plain, by_base = defaultdict[str, list[int]](list), defaultdict[str, set[str]](set)
    for code in np.unique(trace.rows["kernels"]["name"]).tolist():
        plain = plain_name(trace.text(code))
        by_plain[plain].append(code)
        by_base[base_name(plain)].add(plain)
    result = {}
    for name in names:
        plain, base = plain_name(name), by_base.get(base_name(name), set())
        only = next(iter(base)) if len(base) == 1 and "<" not in plain else ""
        result[name] = np.array(by_plain.get(plain) or by_plain.get(only, []), np.int64)
    return result


def _of_shape(trace: Trace, rows: Int64, blocks: int, threads: int | None) -> Int64:
    """Return those of the rows with this launch shape."""
    kernels = trace.rows["kernels"]
    rows = rows[kernels["blocks"][rows] == blocks]
    equal = kernels["threads_per_block"][rows] == threads
    # A Triton kernel with specialised warps has more of them than its option `num_warps`.
    return rows[equal] if threads is not None and equal.any() else rows
