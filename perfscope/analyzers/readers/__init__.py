"""The readers: a table of format -> module, one format per file.

The module of a reader has ``sniff(path, head) -> bool`` (``head``: the first bytes, decompressed) and ``read(path) ->
Trace``. ``read`` raises ``DataError`` with one line if the file has the format but cannot be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.model.hooks import names_from

READERS: dict[str, str] = {
    "compiled": "perfscope.analyzers.readers.compiled",
    "flight_recorder": "perfscope.analyzers.readers.flight_recorder",
    "hlo_proto": "perfscope.analyzers.readers.hlo.proto",
    "hlo_text": "perfscope.analyzers.readers.hlo.text",
    "jax_memory": "perfscope.analyzers.readers.jax_memory",
    "kineto": "perfscope.analyzers.readers.kineto.reader",
    "nsys": "perfscope.analyzers.readers.nsys.reader",
    "nsys_jax": "perfscope.analyzers.readers.nsys.jax_toolbox",
    "rocprofv3": "perfscope.analyzers.readers.rocprof.reader",
    "run": "perfscope.analyzers.readers.run.reader",
    "torch_memory": "perfscope.analyzers.readers.torch_memory.reader",
    "torch_trace": "perfscope.analyzers.readers.torch_log.reader",
    "uncompiled_program": "perfscope.analyzers.readers.hlo.uncompiled",
    "xla_trace_json": "perfscope.analyzers.readers.xspace.trace_json",
    "xplane": "perfscope.analyzers.readers.xspace.reader",
    # op_graph is read as part of a run, never by itself.
}

FORMAT_WORDS: dict[str, str] = {
    "compiled": "runs",
    "flight_recorder": "dumps of the NCCL flight recorder",
    "hlo_proto": "compiled XLA programs (HLO)",
    "hlo_text": "compiled XLA programs (HLO)",
    "jax_memory": "device memory profiles of jax",
    "kineto": "traces of torch.profiler",
    "nsys": "reports and exports of Nsight Systems",
    "nsys_jax": "archives of nsys-jax",
    "rocprofv3": "traces of rocprofv3 (CSV, JSON)",
    "run": "runs",
    "torch_memory": "CUDA memory snapshots",
    "torch_trace": "logs of torch.compile (TORCH_TRACE)",
    "uncompiled_program": "exported programs (`perfscope compile`)",
    "xla_trace_json": "profiles of jax (xplane.pb, trace.json.gz)",
    "xplane": "profiles of jax (xplane.pb, trace.json.gz)",
}
"""Name of a format in errors; the format of an installed package is called by its own name."""

if TYPE_CHECKING:
    from perfscope.analyzers.readers.cache import cache_folder as cache_folder
    from perfscope.analyzers.readers.cache import edge_bytes as edge_bytes
    from perfscope.analyzers.readers.cache import make_room as make_room
    from perfscope.analyzers.readers.columns import Columns as Columns
    from perfscope.analyzers.readers.columns import Lookup as Lookup
    from perfscope.analyzers.readers.columns import join_columns as join_columns
    from perfscope.analyzers.readers.columns import named_steps as named_steps
    from perfscope.analyzers.readers.columns import nesting_order as nesting_order
    from perfscope.analyzers.readers.columns import of_names as of_names
    from perfscope.analyzers.readers.columns import op_above as op_above
    from perfscope.analyzers.readers.columns import parent_of_call as parent_of_call
    from perfscope.analyzers.readers.columns import parents as parents
    from perfscope.analyzers.readers.columns import reorder as reorder
    from perfscope.analyzers.readers.columns import span_around as span_around
    from perfscope.analyzers.readers.communication import collective_name as collective_name
    from perfscope.analyzers.readers.communication import is_communication as is_communication
    from perfscope.analyzers.readers.file_bytes import HEAD_BYTES as HEAD_BYTES
    from perfscope.analyzers.readers.file_bytes import open_bytes as open_bytes
    from perfscope.analyzers.readers.file_bytes import read_head as read_head
    from perfscope.analyzers.readers.hlo.unoptimized import unoptimized_program as unoptimized_program
    from perfscope.analyzers.readers.kineto.categories import STEP_NAMES as STEP_NAMES
    from perfscope.analyzers.readers.kineto.categories import call_kind as call_kind
    from perfscope.analyzers.readers.kineto.categories import copy_kind as copy_kind
    from perfscope.analyzers.readers.kineto.categories import host_memory as host_memory
    from perfscope.analyzers.readers.load import MOST_FILES as MOST_FILES
    from perfscope.analyzers.readers.load import MOST_NAMED as MOST_NAMED
    from perfscope.analyzers.readers.load import Input as Input
    from perfscope.analyzers.readers.load import Loaded as Loaded
    from perfscope.analyzers.readers.load import ReadTrace as ReadTrace
    from perfscope.analyzers.readers.load import Skipped as Skipped
    from perfscope.analyzers.readers.load import Task as Task
    from perfscope.analyzers.readers.load import TaskResult as TaskResult
    from perfscope.analyzers.readers.load import Unit as Unit
    from perfscope.analyzers.readers.load import assemble as assemble
    from perfscope.analyzers.readers.load import different as different
    from perfscope.analyzers.readers.load import discover as discover
    from perfscope.analyzers.readers.load import is_remote as is_remote
    from perfscope.analyzers.readers.load import left_out_sentence as left_out_sentence
    from perfscope.analyzers.readers.load import load_all as load_all
    from perfscope.analyzers.readers.load import load_one as load_one
    from perfscope.analyzers.readers.load import load_path as load_path
    from perfscope.analyzers.readers.load import load_paths as load_paths
    from perfscope.analyzers.readers.load import of_ranks as of_ranks
    from perfscope.analyzers.readers.load import read_task as read_task
    from perfscope.analyzers.readers.load import reader_of as reader_of
    from perfscope.analyzers.readers.load import set_aside as set_aside
    from perfscope.analyzers.readers.nsys.database import Database as Database
    from perfscope.analyzers.readers.nsys.database import open_database as open_database
    from perfscope.analyzers.readers.paths import resolve as resolve
    from perfscope.analyzers.readers.run.parts import DividedRun as DividedRun
    from perfscope.analyzers.readers.run.parts import RunPart as RunPart
    from perfscope.analyzers.readers.run.parts import divide_run as divide_run
    from perfscope.analyzers.readers.run.reader import read_part as read_part
    from perfscope.analyzers.readers.torch_log.graphs import LoggedGraph as LoggedGraph
    from perfscope.analyzers.readers.torch_log.graphs import logged_graphs as logged_graphs
    from perfscope.analyzers.readers.torch_log.graphs import printed_graph as printed_graph
    from perfscope.analyzers.readers.workers import LostTask as LostTask
    from perfscope.analyzers.readers.workers import cores as cores
    from perfscope.analyzers.readers.workers import work_here as work_here
    from perfscope.analyzers.readers.workers import work_through as work_through
else:
    __getattr__ = names_from(
        __name__,
        {
            "cache": "cache_folder edge_bytes make_room",
            "columns": (
                "Columns Lookup join_columns named_steps nesting_order of_names op_above parent_of_call parents "
                "reorder span_around"
            ),
            "communication": "collective_name is_communication",
            "file_bytes": "HEAD_BYTES open_bytes read_head",
            "hlo.unoptimized": "unoptimized_program",
            "kineto.categories": "STEP_NAMES call_kind copy_kind host_memory",
            "load": (
                "Input Loaded MOST_FILES ReadTrace Skipped Task TaskResult Unit assemble different discover "
                "is_remote load_all load_one load_path load_paths of_ranks read_task reader_of set_aside "
                "MOST_NAMED left_out_sentence"
            ),
            "nsys.database": "Database open_database",
            "paths": "resolve",
            "run.parts": "DividedRun RunPart divide_run",
            "run.reader": "read_part",
            "torch_log.graphs": "LoggedGraph logged_graphs printed_graph",
            "workers": "LostTask cores work_here work_through",
        },
    )
