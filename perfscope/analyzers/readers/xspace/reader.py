"""XSpace (``*.xplane.pb``, also gzipped): what ``jax.profiler``, XProf and TensorFlow record.

```
XSpace { planes: [ XPlane { name, lines: [ XLine { name, timestamp_ns, events: [
           XEvent { metadata_id, offset_ps, duration_ps, stats: [XStat] } ] } ],
         event_metadata: {id: {name, stats}}, stat_metadata: {id: {name}}, stats } ], hostnames }
```

Times: ns are whole; ps offsets are rounded half to even. Newer profilers write times relative to the
start of the profile, which the plane ``Task Environment`` names: it is added, so hosts share a clock.

Host (``/host:CPU`` and its like): a line is a thread. Driver calls (they carry a correlation id) become
``calls``, allocations ``memory``, spans with ``step_num`` ``steps``, the rest ``slices``. Marks of the
thread pool are left out, the two marks of a wait are one span, and a jitted call that is written twice
is shown once; each is counted in the notes.

CPU backend: its devices, virtual ones too, are threads of the host and not accelerators: an instruction is
a host op, and no row of ``devices``, ``kernels`` or device time stands for it. The table ``hlo_ops`` says
which device (``ordinal``), module and run each belongs to, and when it ended: its slice lasts only as
long as the call that began it, ``hlo_ops.end_ns`` is its end mark, on whatever thread. A collective's
rendezvous is a row of ``collectives`` for each device that takes part.

GPU (``/device:GPU:N``, CUDA and ROCm): a line is a stream; kernels and copies, with their call by
correlation id and their instruction in ``hlo_ops``. TPU (``/device:TPU:N``): see ``xspace/device.py``.

Host names are not read. The modules in ``/host:metadata`` become ``Trace.hlo``; one without a mark of its
platform that ran on threads of the host was compiled for the CPU.
"""

from __future__ import annotations

import os
from pathlib import Path

from perfscope.analyzers.readers.file_bytes import open_bytes
from perfscope.analyzers.readers.xspace.build import build
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace
from perfscope.model.wire import BYTES, VARINT, WireError, fields

FORMAT = "xplane"

MAX_BYTES = 2 << 30
"""Decompressed bytes of a file: no protocol buffer is larger."""

_SUFFIXES = (".xplane.pb", ".xplane.pb.gz")
_PROFILE_FOLDERS = ("plugins", "profile")
"""``LOGDIR/plugins/profile/SESSION/HOST.xplane.pb``: where TensorBoard looks for profiles."""

_PLANE = b"\x0a"
_ID, _NAME = 1, 2
_PLANE_NAMES = (b"/host:", b"/device:", b"Task Environment", b"#Chip")


def sniff(path: Path, head: bytes) -> bool:
    """True for an XSpace, and for the folder of one profile (a file a host beside its viewer's copy)."""
    if path.is_dir():
        return _is_session(path)
    return path.name.endswith(_SUFFIXES) or _begins_with_plane(head)


def _is_session(folder: Path) -> bool:
    place = Path(os.path.abspath(folder))
    if place.parent.name != _PROFILE_FOLDERS[1] or place.parent.parent.name != _PROFILE_FOLDERS[0]:
        return False
    return bool(_files(folder))


def _begins_with_plane(head: bytes) -> bool:
    """The first field is a plane, whose first fields are its id, where it has one, and its name."""
    try:
        plane = next(fields(head, 0, len(head), lenient=True), None)
        if plane is None or head[:1] != _PLANE:
            return False
        for number, kind, _, start, end in fields(head, plane.start, min(plane.end, len(head)), lenient=True):
            if (number, kind) != (_ID, VARINT):
                return (number, kind) == (_NAME, BYTES) and head[start:end].startswith(_PLANE_NAMES)
    except WireError:
        pass
    return False


def read(path: Path) -> Trace | list[Trace]:
    """The trace in ``path``; of a profile's folder one trace a host, by file name.

    ``DataError``, one line, for a file that is empty, cut off, corrupt or holds no events.
    """
    if not path.is_dir():
        return read_file(path)
    return [read_file(file) for file in _files(path)]


def _files(folder: Path) -> list[Path]:
    return sorted(place for place in folder.iterdir() if place.name.endswith(_SUFFIXES))


def read_file(path: Path) -> Trace:
    """The trace of one host; ``DataError`` as in ``read``."""
    shown = str(path)
    with open_bytes(path, MAX_BYTES) as data:
        if not len(data):
            raise DataError(f"{shown}: empty file")
        return build(data, shown)
