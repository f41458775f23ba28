"""Collectives that XLA made asynchronous on GPUs: the kernel names the operation inside, the program has its start.

The programs are real ones, compiled for H100s. No profile of several GPUs is at hand: the planes are written as XLA's
source has it, which annotates a launch with the instruction inside the ``async-start``.
"""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from perfscope.analyzers.collectives_section import collectives_section
from perfscope.analyzers.facts.hlo_collectives import collectives_of
from perfscope.analyzers.hlo.proto import module_of_proto
from perfscope.analyzers.readers.xspace.programs import started
from perfscope.analyzers.trace import Trace
from tests.analyzers.readers.profiles import US, read, texts
from tests.analyzers.readers.wire import SpaceWriter, content

pytestmark = pytest.mark.corpus

FSDP8 = "aot/fsdp8.hlo.pb.gz"
MAXTEXT = "hlo_pb/JAX-Toolbox__module_0016.jit_train_step.sm_9.0_gpu_after_optimizations.hlo.pb.xz"


def program(file: Path) -> bytes:
    return lzma.decompress(file.read_bytes()) if file.suffix == ".xz" else content(file)


def recording(folder: Path, proto: bytes, name: str, instruction: str, devices: int, times: int = 1) -> Trace:
    """Kernels of NCCL for ``instruction`` on each device, each device 5 us longer in one than the next device."""
    space = SpaceWriter().metadata(**{f"{name}(16)": proto})
    for device in range(devices):
        took = (100 + 5 * (devices - device)) * US
        stats = {"hlo_op": instruction, "hlo_module": name, "program_id": 16, "run_id": 1}
        name_of = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
        kernels = [(name_of, 300 * US * turn, 300 * US * turn + took, stats) for turn in range(times)]
        space.plane(f"/device:GPU:{device}", {"Stream #20(Kernel)": kernels})
    return read(folder, space.plane("/host:CPU", {"python": [("work", 0, 300 * US)]}))


@pytest.mark.parametrize(
    ("file", "devices", "inside", "start", "operation"),
    [
        (MAXTEXT, 4, "all-to-all.3", "all-to-all-start", "all_to_all"),
        (FSDP8, 8, "reduce-scatter.2", "reduce-scatter-start", "reduce_scatter"),
        (FSDP8, 8, "all-to-all.1.1", "all-to-all-start.1", "all_to_all"),
    ],
)
def test_the_operation_inside_is_the_collective_of_the_program(
    corpus: Path, tmp_path: Path, file: str, devices: int, inside: str, start: str, operation: str
) -> None:
    proto = program(corpus / file)
    module = module_of_proto(proto, file)
    assert started(module)[inside] == start
    (collective,) = [one for one in collectives_of(module) if one.start.name == start]
    times = collective.runs.times
    trace = recording(tmp_path, proto, module.name, inside, devices, times)
    assert set(texts(trace, "hlo_ops")) == {start}
    (job,) = collectives_section([trace]).jobs
    (kind,) = job.kinds
    assert (kind.operation, kind.group, kind.count) == (operation, tuple(range(devices)), times)
    assert kind.message_bytes == collective.bytes > 0
    assert kind.core_ns == 105_000 * times
    assert kind.wait_ns == {device: 5_000 * (devices - 1 - device) * times for device in range(devices)}
    assert job.unmatched == 0


def test_a_name_that_no_start_wraps_stays(corpus: Path, tmp_path: Path) -> None:
    proto = program(corpus / FSDP8)
    trace = recording(tmp_path, proto, "jit_step", "all-to-all.99", 8)
    assert set(texts(trace, "hlo_ops")) == {"all-to-all.99"}


def test_a_program_of_another_name_names_nothing(corpus: Path, tmp_path: Path) -> None:
    proto = program(corpus / FSDP8)
    trace = recording(tmp_path, proto, "jit_other", "all-to-all.1.1", 8)
    assert set(texts(trace, "hlo_ops")) == {"all-to-all.1.1"}
