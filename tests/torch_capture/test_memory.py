"""CUDA memory snapshots against a stand-in for torch's private API: no test here needs a GPU, and none has seen one."""

from __future__ import annotations

import copy
import gc
import gzip
import json
import weakref
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.readers.torch_memory import reader as reader
from perfscope.model.documents.run import Process
from perfscope.profiler.session.passes import Pass
from perfscope.profiler.torch import memory as torch_memory
from perfscope.profiler.torch.memory import MOST_ENTRIES, MOST_FAILURES, MemoryRecorder, TorchMemoryCapture
from perfscope.profiler.torch.tensors import (
    TOOL,
    ModuleRegistry,
    StorageListing,
    StorageRecord,
    TorchTensorsCapture,
    available,
    list_storages,
)

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

BASE = 1 << 40
FRAME = {"filename": __file__, "line": 7, "name": "forward"}


class Allocator:
    """Functions of torch used by the capture, with the signatures of torch 2.1 to 2.13."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.history = False
        self.observers: list[Any] = []
        self.snapshots = 0

    def record(
        self, enabled: str | None = "all", context: str | None = "all", stacks: str = "all", max_entries: int = 1
    ) -> None:
        self.calls.append((enabled, context, stacks, max_entries))
        self.history = enabled is not None

    def snapshot(self) -> dict[str, Any]:
        self.snapshots += 1
        stack = [dict(FRAME)]
        block = {"address": BASE, "size": 1024, "requested_size": 1000, "state": "active_allocated", "frames": stack}
        free = {
            "address": BASE + 1024,
            "size": (2 << 20) - 1024,
            "requested_size": 0,
            "state": "inactive",
            "frames": [],
        }
        segment = {
            "device": 0,
            "address": BASE,
            "total_size": 2 << 20,
            "allocated_size": 1024,
            "active_size": 1024,
            "requested_size": 1000,
            "stream": 0,
            "segment_type": "small",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": [block, free],
        }
        events = [{"action": "alloc", "addr": BASE, "size": 1000, "stream": 0, "time_us": 5, "frames": stack}]
        return {"segments": [segment], "device_traces": [events if self.history else []]}


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    fake = Allocator()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: {"num_ooms": 2, "num_alloc_retries": 3, "other": 1})
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", fake.record)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", fake.snapshot)
    monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: fake.history, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", fake.observers.append, raising=False)
    return fake


def test_it_is_not_available_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no CUDA device" in (torch_memory.available() or "")
    capture = TorchMemoryCapture()
    capture.watch(Path("nowhere"))
    capture.begin(3)
    capture.end(Path("nowhere"), 3)
    assert capture.save() == [], "a program on the CPU is not told what it cannot have"


def test_the_snapshot_of_a_pass_is_read_by_the_reader(allocator: Allocator, tmp_path: Path) -> None:
    assert torch_memory.available() is None
    (tmp_path / "rank00000").mkdir()
    capture = TorchMemoryCapture()
    capture.begin(6)
    assert allocator.calls == [("all", "alloc", "python", MOST_ENTRIES)]
    capture.end(tmp_path / "rank00000", 6)
    assert allocator.calls[-1][0] is None, "nothing is recorded behind the pass"
    (said,) = capture.save()
    assert (said.pass_name, said.state, said.steps, said.artifact) == (
        "memory",
        "recorded",
        (6, 7),
        "rank00000/memory.pickle.gz",
    )
    trace = reader.read(tmp_path / "rank00000" / "memory.pickle.gz")
    assert {"memory", "memory_state"} <= trace.recorded
    assert trace.rows["segments"]["bytes"].tolist() == [2 << 20]
    files = {trace.text(code) for code in trace.rows["frames"]["file"]}
    assert files == {"tests/torch_capture/test_memory.py"}, "no path of the machine"
    assert list((tmp_path / "rank00000").iterdir()) == [tmp_path / "rank00000" / "memory.pickle.gz"]


def test_a_history_of_the_programs_own_is_left_alone(allocator: Allocator, tmp_path: Path) -> None:
    allocator.history = True
    capture = TorchMemoryCapture()
    capture.begin(6)
    capture.end(tmp_path, 6)
    assert allocator.calls == []
    assert allocator.history
    assert capture.save()[0].state == "recorded"


def test_out_of_memory_keeps_what_was_held(allocator: Allocator, tmp_path: Path) -> None:
    capture = TorchMemoryCapture()
    for _ in range(2):
        capture.watch(tmp_path)
    (observer,) = allocator.observers
    assert not allocator.calls, "nothing is recorded while steps are timed"
    for _ in range(MOST_FAILURES + 2):
        observer(0, 1 << 30, 1 << 34, 1 << 20)
    assert allocator.snapshots == MOST_FAILURES
    (said,) = capture.save()
    assert (said.pass_name, said.state, said.reason) == ("out_of_memory", "recorded", None)
    trace = reader.read(tmp_path / "out_of_memory.pickle.gz")
    assert trace.rows["held"]["bytes"].sum() == 2 << 20


def test_what_breaks_in_the_observer_does_not_reach_the_program(
    allocator: Allocator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks() -> Any:
        raise RuntimeError("no room")

    monkeypatch.setattr(torch.cuda.memory, "_snapshot", breaks)
    capture = TorchMemoryCapture()
    capture.watch(tmp_path)
    allocator.observers[0](0, 1, 1, 1)
    capture.begin(6)
    capture.end(tmp_path, 6)
    reasons = {item.pass_name: item.reason for item in capture.save()}
    assert reasons == {
        "out_of_memory": "no snapshot of it: RuntimeError: no room",
        "memory": "no memory snapshot: RuntimeError: no room",
    }
    assert not allocator.history


def test_parts_that_are_missing_say_so(allocator: Allocator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cuda.memory, "_record_memory_history")
    monkeypatch.delattr(torch._C, "_cuda_attach_out_of_memory_observer")
    capture = TorchMemoryCapture()
    capture.watch(tmp_path)
    capture.begin(6)
    assert {item.pass_name: item.reason for item in capture.save()} == {
        "memory": "no memory history: AttributeError: "
        "module 'torch.cuda.memory' has no attribute '_record_memory_history'",
        "out_of_memory": "it cannot be watched for: AttributeError: "
        "module 'torch._C' has no attribute '_cuda_attach_out_of_memory_observer'",
    }


def test_the_signature_of_this_torch_is_the_one_that_is_called() -> None:
    import inspect

    named = inspect.signature(torch.cuda.memory._record_memory_history).parameters
    assert {"enabled", "context", "stacks", "max_entries"} <= set(named)
    assert callable(torch.cuda.memory._snapshot)


def test_only_the_pass_with_memory_records_and_counters_are_kept(allocator: Allocator, tmp_path: Path) -> None:
    held = MemoryRecorder(tmp_path)
    held.listen()
    timing = Pass(name="timing", tool="torch_profiler", count=3, suffix="")
    detail = Pass(name="detail", tool="torch_profiler", count=1, suffix="", memory=True)
    try:
        seen = held.before(Process(rank=0, directory="."), timing, 2, [])
        assert not allocator.calls
        seen = held.after(seen, 4, last=False)
        seen = held.before(seen, detail, 6, [])
        assert allocator.history
        seen = held.after(seen, 6, last=True)
    finally:
        held.stop()
    counters = {"num_ooms": 2, "num_alloc_retries": 3}
    told = [
        {name: value for name, value in memory.items() if name != "live_arrays_bytes"}  # jax's, if a test imported it
        for memory in (seen.memory, seen.memory_after)
    ]
    assert told == [counters, counters], "what is on the list, and nothing else"
    assert [item.pass_name for item in held.save(tmp_path)] == ["memory"]


nn = torch.nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4, bias=False)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x - self.mean).relu())


@pytest.fixture
def registry() -> Any:
    listening = ModuleRegistry()
    listening.start()
    yield listening
    listening.stop()


def trained(net: Any) -> Any:
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    net(torch.randn(2, 8)).sum().backward()
    optimizer.step()
    return optimizer


def by_name(listing: StorageListing) -> dict[str, StorageRecord]:
    return {item.name: item for item in listing.held}


def test_it_is_available() -> None:
    assert available() is None


def test_a_compiled_model_that_slices_its_layers_stays_one_graph(registry: Any) -> None:
    """Models of transformers do this: the slice is a new ``ModuleList``, built while dynamo traces."""

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: Any) -> Any:
            for layer in self.layers[:2]:
                x = layer(x)
            return {"out": x}

    model = Layers()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2, 8))["out"].shape == (2, 8)
    assert {module.partition(".")[0] for _, module, _, _ in registry.named()} == {"OptimizedModule"}


def test_names_modules_categories_and_sizes(registry: Any) -> None:
    net = Net()
    optimizer = trained(net)
    listing = list_storages([optimizer], registry)
    found = by_name(listing)
    weight = found["first.weight"]
    assert (weight.module, weight.category, weight.bytes, weight.device) == ("Net.first", "parameter", 512, "cpu")
    assert weight.address == net.first.weight.untyped_storage().data_ptr()
    assert (found["mean"].module, found["mean"].category) == ("Net", "buffer")
    assert found["gradient of second.weight"].category == "gradient"
    assert found["exp_avg of first.bias"].module == "Net.first"
    assert found["exp_avg_sq of first.bias"].category == "optimizer_state"
    assert found["step of first.bias"].bytes == 4
    parameters = 4 * (8 * 16 + 16 + 16 * 4)
    assert listing.sums() == {
        "parameters_bytes": parameters,
        "buffers_bytes": 32,
        "gradients_bytes": parameters,
        "optimizer_state_bytes": 2 * parameters + 3 * 4,
    }
    assert [item.bytes for item in listing.held] == sorted((item.bytes for item in listing.held), reverse=True)


def test_a_storage_is_there_once(registry: Any) -> None:
    net = Net()
    net.second.weight = nn.Parameter(net.first.weight.view(16, 8)[:, :4].t())  # tied: another view of one storage
    listing = list_storages([torch.optim.SGD(net.parameters())], registry)
    addresses = [item.address for item in listing.held]
    assert len(addresses) == len(set(addresses))
    assert "second.weight" not in by_name(listing)


def test_without_modules_the_optimizers_names_are_taken() -> None:
    net = Net()  # nothing listens
    told = list_storages([torch.optim.SGD(net.named_parameters())], ModuleRegistry())
    assert set(by_name(told)) == {"first.weight", "first.bias", "second.weight"}
    untold = list_storages([torch.optim.SGD(net.parameters())], ModuleRegistry())
    assert set(by_name(untold)) == {f"SGD.param_groups[0][{index}]" for index in range(3)}


def test_models_that_went_are_gone_and_copies_have_no_names(registry: Any) -> None:
    net = Net()
    other = copy.deepcopy(net)
    assert {name for name, _, _, _ in registry.named()} == {"first.weight", "first.bias", "second.weight", "mean"}
    reference = weakref.ref(net)
    del net
    gc.collect()
    assert reference() is None, "the registry keeps no model alive"
    assert list(registry.named()) == []
    assert other is not None


def test_layers_that_were_copied_have_names_within_their_model(registry: Any) -> None:
    model = nn.ModuleDict({"layers": nn.ModuleList(copy.deepcopy(nn.Linear(2, 2)) for _ in range(3))})
    assert {name for name, _, _, _ in registry.named()} >= {f"layers.{index}.weight" for index in range(3)}
    assert {module for _, module, _, _ in registry.named()} >= {"ModuleDict.layers.2"}
    assert model is not None


def test_torch_is_left_as_it_was() -> None:
    from torch.nn.modules import module

    tables = [module._global_parameter_registration_hooks, module._global_module_registration_hooks]
    before = [dict(table) for table in tables]
    listening = ModuleRegistry()
    listening.start()
    assert [dict(table) for table in tables] != before
    listening.stop()
    assert [dict(table) for table in tables] == before


def test_only_the_largest_are_named_and_the_rest_is_summed(registry: Any) -> None:
    net = Net()
    optimizer = trained(net)
    whole, cut = list_storages([optimizer], registry), list_storages([optimizer], registry, most=4)
    assert len(cut.held) == 4
    assert cut.sums() == whole.sums()
    assert sum(count for _, count in cut.rest.values()) == len(whole.held) - 4


def test_a_subclass_counts_what_lies_in_it(registry: Any) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    net = Net()
    net.first.weight = nn.Parameter(TwoTensor(torch.zeros(16, 8), torch.zeros(16, 8)))
    listing = list_storages([], registry)
    assert [item.bytes for item in listing.held if item.name == "first.weight"] == [512, 512]


def test_what_has_no_storage_is_counted(registry: Any) -> None:
    net = Net()
    net.register_buffer("sparse", torch.eye(4).to_sparse())
    net.register_buffer("nowhere", torch.zeros(4, device="meta"))
    listing = list_storages([], registry)
    assert listing.unreadable == 1
    assert not {"sparse", "nowhere"} & set(by_name(listing))


def test_the_local_part_of_a_sharded_tensor(registry: Any) -> None:
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        net = Net()
        fully_shard(net, mesh=dist.device_mesh.init_device_mesh("cpu", (1,)))
        try:
            optimizer = trained(net)
        except AttributeError as error:
            pytest.skip(f"fully_shard of this torch does not run on the CPU: {error}")
        found = by_name(list_storages([optimizer], registry))
        local = net.first.weight.to_local()
        assert found["first.weight"].address == local.untyped_storage().data_ptr()
        assert found["first.weight"].bytes == local.untyped_storage().nbytes()
        assert found["exp_avg of first.weight"].category == "optimizer_state"
    finally:
        dist.destroy_process_group()


def test_what_goes_within_the_pass_is_dated(registry: Any, tmp_path: Path) -> None:
    capture = TorchTensorsCapture()
    capture.start()
    net = Net()
    optimizer = trained(net)
    assert capture.begin("detail", 7, [optimizer])["gradients_bytes"] > 0
    optimizer.zero_grad()
    capture.end()
    optimizer.state.clear()  # after the pass: not recorded any more
    (said,) = capture.save(tmp_path, tmp_path)
    capture.stop()
    assert (said.tool, said.state, said.artifact) == (TOOL, "recorded", "tensors.json.gz")
    document = json.loads(gzip.decompress((tmp_path / "tensors.json.gz").read_bytes()))
    (listing,) = document["listings"]
    freed = {
        document["strings"][category]
        for category, when in zip(listing["category"], listing["freed_ns"], strict=True)
        if when is not None
    }
    assert freed == {"gradient"}
    assert (listing["pass"], listing["step"]) == ("detail", 7)


def test_nothing_is_written_where_nothing_is_held(tmp_path: Path) -> None:
    capture = TorchTensorsCapture()
    assert capture.begin("timing", 1, []) == {}
    assert capture.save(tmp_path, tmp_path) == []


def test_a_tensor_that_breaks_is_a_reason_and_no_error(tmp_path: Path) -> None:
    class Broken:
        param_groups = ({"params": [object()]},)

    capture = TorchTensorsCapture()
    assert capture.begin("timing", 1, [Broken()]) == {}
    (said,) = capture.save(tmp_path, tmp_path)
    assert said.state == "missing"
    assert "AttributeError" in (said.reason or "")


@pytest.mark.parametrize("policy", [pytest.param("none", marks=pytest.mark.slow), "full"])
def test_with_the_events_it_is_torchs_own_peak(policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.profiler import ProfilerActivity, profile
    from torch.profiler._memory_profiler import Action

    from perfscope.workloads import transformer
    from perfscope.workloads.options import Options

    capture = TorchTensorsCapture()
    capture.start()
    profiler = profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True, with_stack=True)
    steps: list[int] = []

    def boundary(optimizer: Any, *_: Any) -> None:
        steps.append(1)
        if len(steps) == 2:
            capture.begin("detail", 2, [optimizer])
            profiler.start()
        elif len(steps) == 3:
            profiler.stop()
            capture.end()

    hook = register_optimizer_step_post_hook(boundary)
    try:
        transformer.train(Options(variant="sdpa", size=transformer.SIZES["tiny"], steps=4, policy=policy))
    finally:
        hook.remove()
        capture.stop()
        torch.set_float32_matmul_precision("highest")
    timeline = profiler._memory_profile()
    held = peak = 0
    before: dict[int, int] = {}
    strangers: list[int] = []
    for _, action, (key, _), size in timeline.timeline:
        storage = getattr(key, "storage", None)
        if action == Action.PREEXISTING and storage is None:
            strangers.append(size)  # of no tensor of this program: what an earlier test left is freed meanwhile
            continue
        if action == Action.DESTROY and storage is None and size in strangers:
            strangers.remove(size)
            continue
        if action == Action.PREEXISTING:
            before[storage.ptr] = size
        held += {Action.PREEXISTING: size, Action.CREATE: size, Action.DESTROY: -size}.get(action, 0)
        peak = max(peak, held)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    content = json.loads((tmp_path / "trace.json").read_text())
    capture.save(tmp_path, tmp_path)
    document = json.loads(gzip.decompress((tmp_path / "tensors.json.gz").read_bytes()))
    (listing,) = document["listings"]
    changes = [
        (freed, -size) for freed, size in zip(listing["freed_ns"], listing["bytes"], strict=True) if freed is not None
    ]
    blocks: dict[int, int] = {}
    for event in content["traceEvents"]:
        if event.get("name") == "[memory]":
            address, size = event["args"]["Addr"], event["args"]["Bytes"]
            if size > 0:
                blocks[address] = size
            change = size if size > 0 else -blocks.pop(address, 0)
            changes.append((content["baseTimeNanoseconds"] + round(event["ts"] * 1000), change))
    now = ours = sum(listing["bytes"])
    for _, change in sorted(changes, key=lambda item: item[0]):
        now += change
        ours = max(ours, now)
    unnamed = sum(size for address, size in before.items() if address not in listing["address"])
    # The batch, and a number of the optimizer's: held by the program, and by nothing that is listed.
    assert unnamed == 8 * 33 * 8 + 4
    assert ours == peak - unnamed
    assert capsys.readouterr().out.count("step ") == 4
