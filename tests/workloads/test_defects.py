"""A defect and its twin compute the same numbers, forward and backward, from the same weights and inputs."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.readers.op_graph import read_op_graph
from perfscope.analyzers.readers.torch_memory import reader as torch_memory_reader
from perfscope.model.op_graph import OpGraph
from perfscope.model.trace.tables import HeldState
from perfscope.profiler.torch.op_graph.capture import OpGraphCapture
from perfscope.workloads.options import DEFECTS, KERNEL_DEFECTS, Options, Size, parse
from tests.caching_allocator import LARGE_SEGMENT, MIB, SMALL_SEGMENT, CachingAllocator, OutOfMemoryError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

# Orders of summation differ, nothing else: a few ulp of float64, of float32, of bfloat16 (8 bits).
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 5e-2}
TWINS = [
    ("attention", "naive", "sdpa"),
    ("attention", "naive", "triton"),
    ("moe", "loop", "index_add"),
    ("moe", "loop", "grouped"),
    ("ssm", "scan", "parallel"),
    ("ssm", "scan", "selective"),
    ("kernels.ssd", "scan", "chunks"),
]


def workload(name: str) -> Any:
    return importlib.import_module(f"perfscope.workloads.{name}")


def tokens_of(size: Size) -> Any:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(size.vocab, (size.batch, size.seq + 1), generator=generator)


def numbers(name: str, variant: str, dtype: str, size: Size | None = None) -> tuple[Any, list[Any]]:
    """Loss and gradients of one step with the seed's weights."""
    from perfscope.workloads.training import build, loss_of

    module = workload(name)
    options = Options(variant=variant, size=size or module.SIZES["tiny"], dtype=dtype)
    model = build(module.Block, options)
    loss = loss_of(model, tokens_of(options.size))
    loss.backward()
    return loss.detach(), [parameter.grad for parameter in model.parameters()]


def assert_same(left: tuple[Any, list[Any]], right: tuple[Any, list[Any]], tolerance: float) -> None:
    torch.testing.assert_close(left[0], right[0], rtol=tolerance, atol=0)
    for ours, theirs in zip(left[1], right[1], strict=True):
        distance = (ours - theirs).double().norm() / theirs.double().norm()
        assert distance <= tolerance


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("name", "defect", "twin"), TWINS)
def test_a_defect_and_its_twin(name: str, defect: str, twin: str, dtype: str) -> None:
    assert_same(numbers(name, defect, dtype), numbers(name, twin, dtype), TOLERANCE[dtype])


def test_the_comparison_can_fail() -> None:
    loss, gradients = numbers("ssm", "scan", "float64")
    with pytest.raises(AssertionError):
        assert_same((loss, gradients), (loss, [2 * gradient for gradient in gradients]), TOLERANCE["float64"])


def test_the_grouped_product() -> None:
    # bfloat16 on both sides, because the grouped product supports nothing else.
    loop, grouped = (numbers("moe", variant, "bfloat16") for variant in ("loop", "grouped_mm"))
    assert_same(loop, grouped, TOLERANCE["bfloat16"])


def experts_and_tokens() -> tuple[Any, Any]:
    moe = workload("moe")
    torch.manual_seed(0)
    return moe.Experts(moe.SIZES["tiny"]), torch.randn(32, moe.SIZES["tiny"].dim)


def test_an_expert_without_tokens() -> None:
    moe = workload("moe")
    experts, x_TD = experts_and_tokens()
    # Two of four experts take every token, at the capacity of 2 * 64 / 4 = 32 rows each, exactly.
    expert_TK, weight_TK = torch.tensor([[2, 0]] * 32), torch.rand(32, 2)
    expected = moe.loop(experts, x_TD, weight_TK, expert_TK)
    torch.testing.assert_close(moe.index_add(experts, x_TD, weight_TK, expert_TK), expected)
    grouped = moe.grouped_mm(experts, x_TD, weight_TK, expert_TK)
    torch.testing.assert_close(grouped, expected, rtol=TOLERANCE["bfloat16"], atol=TOLERANCE["bfloat16"])


def test_what_overflows_an_expert_is_dropped() -> None:
    moe = workload("moe")
    experts, x_TD = experts_and_tokens()
    expert_TK, weight_TK = torch.full((32, 2), 3), torch.ones(32, 2)  # 64 rows for the 32 places of one expert
    y_TD = moe.index_add(experts, x_TD, weight_TK, expert_TK)
    expected = moe.loop(experts, x_TD, weight_TK, expert_TK)
    torch.testing.assert_close(y_TD[:16], expected[:16])
    assert (y_TD[16:] == 0).all()


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9])
def test_the_doubling_scan_at_any_length(length: int) -> None:
    ssm = workload("ssm")
    a, u = torch.rand(2, length, 3, 4, dtype=torch.float64), torch.randn(2, length, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(ssm.parallel(a, u), ssm.scan(a, u))


@pytest.mark.slow
def test_flex_forward() -> None:
    from perfscope.workloads.training import build, loss_of

    attention = workload("attention")
    losses = []
    for variant in ("naive", "flex"):
        options = Options(variant=variant, size=attention.SIZES["tiny"])
        with torch.no_grad():
            losses.append(loss_of(build(attention.Block, options), tokens_of(options.size)))
    torch.testing.assert_close(losses[1], losses[0], rtol=TOLERANCE["float32"], atol=0)


def trained(capsys: pytest.CaptureFixture[str], name: str, *defects: str, steps: int = 3) -> list[float]:
    from perfscope.workloads.training import train

    module = workload(name)
    options = Options(variant=module.VARIANTS[1], size=module.SIZES["tiny"], steps=steps, defects=frozenset(defects))
    losses: list[float] = train(module.Block, options)
    assert capsys.readouterr().out.count("step ") == steps
    return losses


@pytest.mark.parametrize("defect", sorted(DEFECTS))
def test_a_defect_changes_no_number(capsys: pytest.CaptureFixture[str], defect: str) -> None:
    plain, defective = trained(capsys, "attention"), trained(capsys, "attention", defect)
    # The fused optimizer rounds in another order; every other defect repeats the same arithmetic.
    assert defective == pytest.approx(plain, rel=1e-5 if defect == "adam-loop" else 0)
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("name", ["attention", "moe", "ssm"])
def test_it_learns(capsys: pytest.CaptureFixture[str], name: str) -> None:
    losses = trained(capsys, name, steps=12)
    assert losses[-1] < losses[0] - 0.1
    torch.set_float32_matmul_precision("highest")


def options(*arguments: str) -> Options:
    attention = importlib.import_module("perfscope.workloads.attention")
    return parse("", attention.VARIANTS, attention.SIZES, ["--size", "tiny", "--variant", "sdpa", *arguments])


def step(asked: Options) -> tuple[Any, dict[str, Any], list[str]]:
    """Loss, gradients by parameter, and the names of the ops of one step in float64."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from perfscope.workloads import training

    class Names(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    model = training.build(importlib.import_module("perfscope.workloads.attention").Block, asked).double()
    size = asked.size
    tokens_BM = torch.randint(size.vocab, (size.batch, size.seq + 1), generator=torch.Generator().manual_seed(1))
    with Names() as names:
        loss = training.loss_of(model, tokens_BM)
        loss.backward()
    return loss.detach(), {name: item.grad for name, item in model.named_parameters() if item.requires_grad}, names.seen


@pytest.mark.parametrize("name", sorted(KERNEL_DEFECTS))
def test_both_compute_the_same(name: str) -> None:
    defect, twin = step(options("--kernel-defect", name)), step(options("--kernel-twin", name))
    torch.testing.assert_close(defect[0], twin[0], rtol=1e-5, atol=0)
    assert defect[1].keys() == twin[1].keys()
    for key, slope in twin[1].items():
        torch.testing.assert_close(defect[1][key], slope, rtol=1e-3, atol=1e-7)
    plain = step(options())
    assert plain[0] != twin[0]


def test_only_the_layout_of_the_tables_differs() -> None:
    kernels = importlib.import_module("perfscope.workloads.kernel_defects")
    torch.manual_seed(0)
    slow = kernels.Positions(16, 8, True)
    torch.manual_seed(0)
    fast = kernels.Positions(16, 8, False)
    assert torch.equal(slow.tables_SLD, fast.tables_SLD)
    assert (slow.tables_SLD.stride(), fast.tables_SLD.stride()) == ((128, 1, 16), (128, 8, 1))


def test_the_flags() -> None:
    for name in KERNEL_DEFECTS:
        assert options("--kernel-defect", name).kernel_defect == name
        assert options("--kernel-twin", name).kernel_twin == name
    with pytest.raises(SystemExit):
        options("--kernel-defect", "order", "--kernel-twin", "order")
    assert options("--compile-backend", "eager").backend == "eager"


STEPS = 12


def recorded(program: Callable[[], Any], folder: Path) -> OpGraph:
    capture = OpGraphCapture()
    capture.start(0)
    try:
        program()
    finally:
        capture.stop()
    capture.save(folder / "graph.json")
    return read_op_graph(folder / "graph.json")


def steps_of(habit: Any, device: str, shape: tuple[int, ...], vocab: int) -> list[Any]:
    """Inputs of a habit in each step of a loop, at these shapes; the step's own values are added."""
    for _ in range(STEPS):
        x_BLD = torch.empty(shape, device=device, dtype=torch.bfloat16)
        habit(x_BLD, torch.empty(*shape[:2], vocab, device=device, dtype=torch.bfloat16, requires_grad=True))
        del x_BLD
    return [habit]


def replayed(defective: bool, folder: Path, capacity: int = 1 << 60) -> CachingAllocator:
    """The allocations of ``Bank`` at the size of a GPU's run, in the simulated allocator."""
    from perfscope.workloads.memory_defects import Bank
    from perfscope.workloads.transformer import SIZES

    kept: list[Any] = []
    size = SIZES["gpu"]
    shape = (size.batch, size.seq, size.dim)
    graph = recorded(lambda: kept.extend(steps_of(Bank(defective, STEPS), "meta", shape, size.vocab)), folder)
    assert graph.storages is not None
    allocator = CachingAllocator(capacity)
    held: dict[int, int] = {}
    for index in range(len(graph.ops) + 1):
        for number, storage in enumerate(graph.storages):
            if storage.died == index and number in held:
                allocator.free(held.pop(number))
        for number, storage in enumerate(graph.storages):
            if storage.born == index:
                held[number] = allocator.allocate(storage.bytes)
    return allocator


def free_share(snapshot: dict[str, Any], folder: Path) -> float:
    """Share of the reserved memory that no block holds, by the reader of snapshots."""
    (folder / "snapshot.pickle").write_bytes(pickle.dumps(snapshot))
    trace = torch_memory_reader.read(folder / "snapshot.pickle")
    held, reserved = trace.rows["held"], int(trace.rows["segments"]["bytes"].sum())
    return float(held["bytes"][held["state"] == HeldState.FREE].sum()) / reserved


def test_a_bank_of_ever_new_sizes_fragments_and_its_twin_does_not(tmp_path: Path) -> None:
    defective, twin = replayed(True, tmp_path), replayed(False, tmp_path)
    assert abs(defective.allocated - twin.allocated) < 0.01 * twin.allocated, "both hold the same at the end"
    assert free_share(defective.snapshot(), tmp_path) > 0.5
    assert free_share(twin.snapshot(), tmp_path) < 0.3
    assert defective.reserved > 2 * twin.reserved


def test_a_device_that_the_twin_fits_into_is_too_small_for_the_defect(tmp_path: Path) -> None:
    capacity = int(1.6 * replayed(False, tmp_path).reserved)
    replayed(False, tmp_path, capacity)
    with pytest.raises(OutOfMemoryError):
        replayed(True, tmp_path, capacity)


def test_the_simulation_does_what_torch_documents() -> None:
    allocator = CachingAllocator()
    first = allocator.allocate(1)
    assert (allocator.allocated, allocator.reserved) == (512, SMALL_SEGMENT)
    second = allocator.allocate(MIB)
    assert allocator.reserved == SMALL_SEGMENT, "both fit into one small segment"
    large = allocator.allocate(MIB + 1)
    assert allocator.reserved == SMALL_SEGMENT + LARGE_SEGMENT
    own = allocator.allocate(25 * MIB + 1)
    assert allocator.reserved == SMALL_SEGMENT + LARGE_SEGMENT + 26 * MIB, "a segment of its own"
    allocator.free(own)
    again = allocator.allocate(25 * MIB + 513)
    assert again == own, "the smallest that fits"
    assert len(allocator.segments[-1].blocks) == 1, "a rest of up to 1 MiB stays with it"
    for address in (first, second, large, again):
        allocator.free(address)
    assert allocator.allocated == 0
    assert [len(segment.blocks) for segment in allocator.segments] == [1, 1, 1], "neighbours are one block again"
    allocator.capacity = allocator.reserved
    kept = allocator.allocate(10 * MIB)
    assert allocator.segments[1].address == kept
    with pytest.raises(OutOfMemoryError):
        allocator.allocate(64 * MIB)
    assert [event["action"] for event in allocator.events].count("segment_free") == 2, "what is free goes back first"
    assert allocator.reserved == LARGE_SEGMENT
