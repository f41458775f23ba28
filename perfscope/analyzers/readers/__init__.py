"""The readers, a written list: format -> module. One format a file.

A reader's module has ``sniff(path, head) -> bool`` (``head``: the first bytes, decompressed) and
``read(path) -> Trace``. ``DataError`` in one line if the file is of the format but cannot be read.
"""

from __future__ import annotations

READERS: dict[str, str] = {
    "compiled": "perfscope.analyzers.readers.compiled",
    "flight_recorder": "perfscope.analyzers.readers.flight_recorder",
    "hlo_proto": "perfscope.analyzers.readers.hlo_proto",
    "hlo_text": "perfscope.analyzers.readers.hlo_text",
    "jax_memory": "perfscope.analyzers.readers.jax_memory",
    "kineto": "perfscope.analyzers.readers.kineto",
    "nsys": "perfscope.analyzers.readers.nsys",
    "nsys_jax": "perfscope.analyzers.readers.nsys_jax",
    "perfetto": "perfscope.analyzers.readers.perfetto",
    "run": "perfscope.analyzers.readers.run",
    "torch_memory": "perfscope.analyzers.readers.torch_memory",
    "torch_memory_timeline": "perfscope.analyzers.readers.torch_memory_timeline",
    "torch_trace": "perfscope.analyzers.readers.torch_trace",
    "xplane": "perfscope.analyzers.readers.xplane",
    # op_graph is read as a part of a run, never on its own
}
