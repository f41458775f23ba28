"""A small training run with something for most rules: launches, waits, copies, fusable chains, memory, collectives."""

from __future__ import annotations

from perfscope.model.trace import CallKind, CopyKind, HostMemory, MemoryAction, Trace
from tests.build import TraceBuilder

STEPS = 3
_LAYERS = 4
_GEMM = "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_64x3_tn"
_POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_ADAM = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<adam>"


def training() -> Trace:
    """Three steps of four layers, times in us."""
    build = TraceBuilder()
    for step in range(STEPS):
        _Step(build, step).record()
    return build.build()


class _Step:
    """One step on one thread, its launches 6 us apart, its work on stream 7 and its collectives on stream 20."""

    def __init__(self, build: TraceBuilder, number: int) -> None:
        self.build, self.number = build, number
        self.host = self.device = self.start = number * 20_000.0
        self.next_id = 1 + number * 1_000

    def record(self) -> None:
        build, start = self.build, self.start
        self._span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 900)
        self._copy_in()
        for layer in range(_LAYERS):
            self._layer(layer)
        self._read_loss()
        for layer in range(_LAYERS):
            self._backward(layer)
        begin = self.host
        for _ in range(12):
            self._op("aten::add_", _ADAM, 3)
        build.annotation("Optimizer.step#Adam.step", begin - 0.5, self.host)
        build.annotation(f"ProfilerStep#{self.number}", start, self.host + 40)
        build.python("train.py(10): main", start + 1, self.host + 30)
        build.step(self.number, start, self.host + 40)

    def _span(self, name: str, lasts: float) -> None:
        self.build.op(name, self.host, self.host + lasts)
        self.host += lasts + 1

    def _id(self) -> int:
        self.next_id += 1
        return self.next_id

    def _op(self, name: str, kernel: str, lasts: float, shapes: str = "[[64, 1024], [1024, 1024]]") -> None:
        ident = self._id()
        self.device = max(self.device, self.host + 8)
        self.build.op(name, self.host, self.host + 5, external_id=ident, shapes=shapes, dtypes='["float", "float"]')
        self.build.launched(kernel, self.host + 1, self.device, self.device + lasts, correlation=ident,
                            external_id=ident, blocks=256, threads=128)  # fmt: skip
        self.device += lasts + 0.5
        self.host += 6

    def _copy_in(self) -> None:
        ident = self._id()
        self.build.op("aten::copy_", self.host, self.host + 60, external_id=ident)
        self.build.call("cudaMemcpyAsync", self.host + 1, self.host + 50, kind=CallKind.COPY, correlation=ident)
        self.build.copy("Memcpy HtoD (Pageable -> Device)", self.host + 5, self.host + 45, correlation=ident,
                        external_id=ident, size=1 << 20)  # fmt: skip
        self.device, self.host = self.host + 46, self.host + 62

    def _layer(self, layer: int) -> None:
        self._memory(layer, MemoryAction.ALLOCATE)
        self._op("aten::mm", _GEMM, 40)
        for name in ("aten::add", "aten::mul", "aten::gelu", "aten::dropout"):
            self._op(name, _POINTWISE, 4, shapes="[[64, 1024], [64, 1024]]")

    def _backward(self, layer: int) -> None:
        self._op("aten::mm", _GEMM, 80)
        self._op("aten::mul", _POINTWISE, 4)
        ident = self._id()
        start = max(self.device, self.host + 10)
        self.build.launched(_REDUCE, self.host, start, start + 60, correlation=ident, stream=20, communication=True)
        self.build.row(
            "collectives", start_ns=round(start * 1000), end_ns=round((start + 60) * 1000),
            name=self.build.code("all_reduce"), kernel=len(self.build.tables["kernels"]) - 1, elements_in=1 << 18,
            elements_out=1 << 18, dtype=self.build.code("Float"), sequence=self.number * _LAYERS + layer, group_size=2,
            group=self.build.code("0"), ranks=self.build.code("[0, 1]"),
        )  # fmt: skip
        self.host += 8
        self._memory(layer, MemoryAction.FREE)

    def _memory(self, layer: int, action: MemoryAction) -> None:
        size = (1 << 20) * (1 if action == MemoryAction.ALLOCATE else -1)
        self.build.row("memory", time_ns=round(self.host * 1000), thread=self.build.thread(1), on_device=True,
                       ordinal=0, address=4096 * (1 + layer), bytes=size, allocated_bytes=(1 << 20) * (layer + 1),
                       reserved_bytes=1 << 24, action=int(action))  # fmt: skip

    def _read_loss(self) -> None:
        ident = self._id()
        self.build.op("aten::item", self.host, self.device + 30)
        self.build.op("aten::_local_scalar_dense", self.host + 1, self.device + 29, external_id=ident)
        self.build.call("cudaMemcpyAsync", self.host + 2, self.host + 6, kind=CallKind.COPY, correlation=ident)
        self.build.copy("Memcpy DtoH (Device -> Pageable)", self.device + 1, self.device + 3, correlation=ident,
                        external_id=ident, kind=CopyKind.DEVICE_TO_HOST, host_memory=HostMemory.PAGEABLE,
                        size=4)  # fmt: skip
        self.build.call("cudaStreamSynchronize", self.host + 7, self.device + 25, kind=CallKind.SYNC)
        self.host = self.device = self.device + 32
