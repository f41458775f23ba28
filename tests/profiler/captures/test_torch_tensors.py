"""What a program holds when a recording begins: names, categories, sizes, and when it goes."""

from __future__ import annotations

import copy
import gc
import gzip
import json
import weakref
from pathlib import Path
from typing import Any

import pytest

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
nn = torch.nn
pytestmark = pytest.mark.torch


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
    assert listening.start() is None
    yield listening
    listening.stop()


def trained(net: Any) -> Any:
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    net(torch.randn(2, 8)).sum().backward()
    optimizer.step()
    return optimizer


def by_name(listing: StorageListing) -> dict[str, StorageRecord]:
    return {one.name: one for one in listing.held}


def test_it_is_available() -> None:
    assert available() is None


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
    assert [one.bytes for one in listing.held] == sorted((one.bytes for one in listing.held), reverse=True)


def test_a_storage_is_there_once(registry: Any) -> None:
    net = Net()
    net.second.weight = nn.Parameter(net.first.weight.view(16, 8)[:, :4].t())  # tied: another view of one storage
    listing = list_storages([torch.optim.SGD(net.parameters())], registry)
    addresses = [one.address for one in listing.held]
    assert len(addresses) == len(set(addresses))
    assert "second.weight" not in by_name(listing)


def test_without_modules_the_optimizers_names_are_taken() -> None:
    net = Net()  # nobody listens
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
    assert [one.bytes for one in listing.held if one.name == "first.weight"] == [512, 512]


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
        optimizer = trained(net)
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
    optimizer.state.clear()  # behind the pass: no longer its business
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


@pytest.mark.parametrize("policy", ["none", "full"])
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
    for _, change in sorted(changes, key=lambda one: one[0]):
        now += change
        ours = max(ours, now)
    unnamed = sum(size for address, size in before.items() if address not in listing["address"])
    # The batch, and a number of the optimizer's: held by the program, and by nothing that is listed.
    assert unnamed == 8 * 33 * 8 + 4
    assert ours == peak - unnamed
    assert capsys.readouterr().out.count("step ") == 4
