"""The readers: a table of format -> module, one format per file.

The module of a reader has ``sniff(path, head) -> bool`` (``head``: the first bytes, decompressed) and ``read(path) ->
Trace``. ``read`` raises ``DataError`` with one line if the file has the format but cannot be read.
"""

from __future__ import annotations

READERS: dict[str, str] = {
    "compiled": "perfscope.analyzers.readers.compiled",
    "flight_recorder": "perfscope.analyzers.readers.flight_recorder",
    "hlo_proto": "perfscope.analyzers.readers.hlo.proto",
    "hlo_text": "perfscope.analyzers.readers.hlo.text",
    "jax_memory": "perfscope.analyzers.readers.jax_memory",
    "kineto": "perfscope.analyzers.readers.kineto.reader",
    "nsys": "perfscope.analyzers.readers.nsys.reader",
    "nsys_jax": "perfscope.analyzers.readers.nsys.jax_toolbox",
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
    "run": "runs",
    "torch_memory": "CUDA memory snapshots",
    "torch_trace": "logs of torch.compile (TORCH_TRACE)",
    "uncompiled_program": "exported programs (`perfscope compile`)",
    "xla_trace_json": "profiles of jax (xplane.pb, trace.json.gz)",
    "xplane": "profiles of jax (xplane.pb, trace.json.gz)",
}
"""Name of a format in errors; the format of an installed package is called by its own name."""
