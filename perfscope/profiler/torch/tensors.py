"""Lists the tensors of a PyTorch program when a recording begins: parameters, buffers, gradients, optimizer state.

Allocator events lack all earlier allocations. No value is read, without a wait for the device: address and size
are known on the host. A weak reference dates the end of a tensor during the recording, because the CPU allocator
does not report blocks that it allocated before.
"""

from __future__ import annotations

import gzip
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import ReferenceType, ref

from perfscope.model.documents.run import Capture
from perfscope.model.files import json_bytes, write_atomically
from perfscope.profiler.patching import Undo
from perfscope.profiler.torch.compat import is_compiling

# Names of parameters and buffers: which ``nn.Module`` holds each, without asking the garbage collector.
#
# A tensor has no reference to its module. Torch calls registration hooks while a model is built, before any step; they
# cost nothing afterwards, and unlike forward hooks torch.compile does not trace them. The tensors of a model that was
# copied or unpickled as a whole have no names here, because it was not built.


class ModuleRegistry:
    """Weak references to the modules that were built, and the names of their tensors."""

    def __init__(self) -> None:
        # By id() with a weak reference: a module may define __eq__ and so have no hash.
        self._modules: dict[int, ReferenceType[Any]] = {}
        self._undo: list[Undo] = []

    def start(self) -> None:
        """Listen."""
        from torch.nn.modules import module

        self._undo = [
            module.register_module_parameter_registration_hook(self._registered).remove,
            module.register_module_module_registration_hook(self._registered).remove,
        ]

    def stop(self) -> None:
        """Stop listening. Known names stay."""
        while self._undo:
            self._undo.pop()()

    def named(self) -> Iterator[tuple[str, str, Any, bool]]:
        """(name, module, tensor, is a parameter) of every parameter and buffer of the modules that are alive.

        Names as in ``LanguageModel.blocks.0``: class of the outermost module, then the path of attributes; the
        tensor's name leaves the class out. A tensor that two modules share comes twice.
        """
        alive = {
            id(module): module for reference in list(self._modules.values()) if (module := reference()) is not None
        }
        inner = {id(child) for module in alive.values() for child in module._modules.values() if child is not None}
        for root in [module for address, module in alive.items() if address not in inner]:
            prefix = type(root).__name__
            for path, module in root.named_modules():
                qualified = f"{prefix}.{path}" if path else prefix
                for entries, is_parameter in ((module._parameters, True), (module._buffers, False)):
                    for name, tensor in entries.items():
                        if tensor is not None:
                            yield (f"{path}.{name}" if path else name), qualified, tensor, is_parameter

    def _registered(self, module: Any, name: str, value: Any) -> None:
        if is_compiling():  # compiled code may slice a list of modules, which makes a new one
            return
        address = id(module)
        known = self._modules.get(address)
        if known is None or known() is not module:
            self._modules[address] = ref(module, lambda gone: self._forget(address, gone))

    def _forget(self, address: int, gone: Any) -> None:
        if self._modules.get(address) is gone:
            del self._modules[address]


TENSORS_SCHEMA = "perfscope.tensors/1"
TOOL = "torch_tensors"
FILE = "tensors.json.gz"

MOST_STORAGES = 20_000
"""Listed by name, the largest first; a model of 10,000 layers has as many. The rest is summed: 2 MB of JSON."""
DEPTH = 3
"""Levels of containers in an optimizer's state: {parameter: {"momentum": [tensors]}}."""

PARAMETER, BUFFER, GRADIENT, OPTIMIZER_STATE = CATEGORIES = ("parameter", "buffer", "gradient", "optimizer_state")
SUMS = {PARAMETER: "parameters_bytes", BUFFER: "buffers_bytes", GRADIENT: "gradients_bytes"} | {
    OPTIMIZER_STATE: "optimizer_state_bytes"
}
"""Category -> its key among a process' bytes by purpose."""


def available() -> str | None:
    """Why tensors cannot be listed in this process, or None."""
    import importlib.util

    return None if importlib.util.find_spec("torch") is not None else "PyTorch is not installed"


@dataclass(slots=True)
class StorageRecord:
    """One storage."""

    name: str
    module: str | None
    category: str
    device: str
    address: int
    bytes: int
    freed_ns: int | None = None


@dataclass(slots=True)
class StorageListing:
    """The storages of one moment, largest first, and the sum of those without a name."""

    held: list[StorageRecord] = field(default_factory=list)
    rest: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    """(category, device) to [bytes, count]."""
    unreadable: int = 0
    """Tensors without an accessible storage (opaque, fake)."""
    watches: list[Any] = field(default_factory=list)

    def sums(self) -> dict[str, int]:
        """Bytes by purpose; empty without any."""
        total = dict.fromkeys(SUMS.values(), 0)
        for record in self.held:
            total[SUMS[record.category]] += record.bytes
        for (category, _), (size, _) in self.rest.items():
            total[SUMS[category]] += size
        return total if any(total.values()) else {}


class _Watch(ref[Any]):
    """A weak reference that records its storage. It keeps no tensor alive."""

    __slots__ = ("held",)

    held: StorageRecord


def _gone(watch: Any) -> None:
    watch.held.freed_ns = time.time_ns()  # the clock of torch's profiler


def list_storages(optimizers: Iterable[Any], registry: ModuleRegistry, *, most: int = MOST_STORAGES) -> StorageListing:
    """Storages that are held now. A storage that several tensors share is listed once, with the first one's name."""
    from perfscope.profiler.torch.op_graph.recorder import dense_parts

    listing = StorageListing()
    records: dict[tuple[str, int], tuple[StorageRecord, Any]] = {}
    for name, module, category, tensor in _tensors(list(optimizers), registry):
        for part in dense_parts(tensor):
            storage = _addressable(part)
            if storage is None:
                listing.unreadable += 1
                continue
            address, size = storage.data_ptr(), storage.nbytes()
            device = str(part.device)
            if size and address and (device, address) not in records:
                record = StorageRecord(
                    name=name, module=module, category=category, device=device, address=address, bytes=size
                )
                records[device, address] = record, storage
    for record, storage in sorted(records.values(), key=lambda entry: -entry[0].bytes):
        if len(listing.held) < most:
            watch = _Watch(storage, _gone)
            watch.held = record
            listing.watches.append(watch)
            listing.held.append(record)
        else:
            rest = listing.rest.setdefault((record.category, record.device), [0, 0])
            rest[0] += record.bytes
            rest[1] += 1
    return listing


class TorchTensorsCapture:
    """The listings of a process: one for the first recording and one for the one with allocator events."""

    def __init__(self) -> None:
        """Nothing is listened to yet."""
        self._registry = ModuleRegistry()
        self._listings: dict[str, tuple[int, StorageListing]] = {}
        self._reason: str | None = None
        self._changed = False

    def start(self) -> None:
        """Listen for the names of modules. A torch that does not tell them has tensors without names."""
        self._registry.start()

    def stop(self) -> None:
        """Leave torch as it was."""
        self._registry.stop()

    def begin(self, pass_name: str, step: int, optimizers: Iterable[Any]) -> dict[str, int]:
        """List the storages before step ``step``, when pass ``pass_name`` begins; return bytes by purpose."""
        try:
            listing = list_storages(optimizers, self._registry)
        except Exception as error:  # a tensor class of the program's own may answer with anything
            self._reason = f"what the program holds could not be listed: {type(error).__name__}: {error}"
            return {}
        if listing.held:
            self._listings[pass_name] = step, listing
            self._changed = True
        return listing.sums()

    def end(self) -> None:
        """The pass ended: what goes from now on is no longer of it."""
        for _, listing in self._listings.values():
            self._changed = self._changed or bool(listing.watches)
            listing.watches.clear()

    def save(self, directory: Path, run: Path) -> list[Capture]:
        """Write the listings to the process' directory if they changed, and return their captures."""
        if self._reason is not None and not self._listings:
            return [Capture(pass_name=TOOL, tool=TOOL, state="missing", reason=self._reason)]
        if not self._listings:
            return []
        path = directory / FILE
        if self._changed:
            content = gzip.compress(json_bytes(_document(self._listings)), 1, mtime=0)
            write_atomically(path, content, durable=False)
            self._changed = False
        return [
            Capture(
                pass_name=TOOL,
                tool=TOOL,
                state="recorded",
                reason=self._reason,
                artifact=path.relative_to(run).as_posix(),
            )
        ]


def _tensors(optimizers: list[Any], registry: ModuleRegistry) -> Iterator[tuple[str, str | None, str, Any]]:
    """(name, module, category, tensor): parameters first, so that shared storages have their names."""
    named = [(name, module, tensor, own) for name, module, tensor, own in registry.named()]
    names: dict[int, tuple[str, str | None]] = {id(tensor): (name, module) for name, module, tensor, _ in named}
    parameters = {id(tensor): tensor for _, _, tensor, own in named if own}
    for optimizer in optimizers:
        for number, group in enumerate(optimizer.param_groups):
            names_given = group.get("param_names") or ()
            for index, parameter in enumerate(group["params"]):
                parameters.setdefault(id(parameter), parameter)
                own_name = f"{type(optimizer).__name__}.param_groups[{number}][{index}]"
                names.setdefault(id(parameter), (names_given[index] if index < len(names_given) else own_name, None))
    for address, parameter in parameters.items():
        yield (*names[address], PARAMETER, parameter)
    for name, module, tensor, own in named:
        if not own:
            yield name, module, BUFFER, tensor
    for address, parameter in parameters.items():
        if parameter.grad is not None:
            whose, where = names[address]
            yield f"gradient of {whose}", where, GRADIENT, parameter.grad
    for optimizer in optimizers:
        for key, state in optimizer.state.items():
            whose, where = names.get(id(key), (key[:80] if isinstance(key, str) else type(key).__name__, None))
            for what, tensor in _of_state(state, DEPTH):
                yield f"{what} of {whose}" if what else whose, where, OPTIMIZER_STATE, tensor


def _of_state(state: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """(key, tensor) of the tensors in an optimizer's state."""
    torch: Any = sys.modules["torch"]
    if isinstance(state, torch.Tensor):
        yield "", state
    elif depth and isinstance(state, Mapping | list | tuple):
        items = state.items() if isinstance(state, Mapping) else enumerate(state)
        for key, value in items:
            for inner, tensor in _of_state(value, depth - 1):
                yield f"{key}.{inner}" if inner else str(key), tensor


def _addressable(tensor: Any) -> Any:
    """The storage of a tensor, or None if its address is not accessible (fake tensors)."""
    from perfscope.profiler.torch.op_graph.storages import storage_of

    storage = storage_of(tensor)
    try:
        if storage is not None:
            storage.data_ptr()
    except RuntimeError:
        return None
    return storage


def _document(listings: Mapping[str, tuple[int, StorageListing]]) -> dict[str, Any]:
    codes: dict[str, int] = {}

    def code(text: str | None) -> int | None:
        return None if text is None else codes.setdefault(text, len(codes))

    documents = [
        {
            "pass": name,
            "step": step,
            "name": [code(record.name) for record in listing.held],
            "module": [code(record.module) for record in listing.held],
            "category": [code(record.category) for record in listing.held],
            "device": [code(record.device) for record in listing.held],
            "address": [record.address for record in listing.held],
            "bytes": [record.bytes for record in listing.held],
            "freed_ns": [record.freed_ns for record in listing.held],
            "rest": [
                {"category": category, "device": device, "bytes": size, "count": count}
                for (category, device), (size, count) in listing.rest.items()
            ],
            "unreadable": listing.unreadable,
        }
        for name, (step, listing) in listings.items()
    ]
    return {"schema": TENSORS_SCHEMA, "strings": list(codes), "listings": documents}
