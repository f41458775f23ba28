"""Names of parameters and buffers: which ``nn.Module`` holds each, without asking the garbage collector.

A tensor does not know its module. Torch calls registration hooks while a model is built, before any step; they cost
nothing once it is built, and unlike forward hooks they are nothing that torch.compile would look at. A model that was
copied or unpickled as a whole was not built, and has no names here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from weakref import ReferenceType, ref

Undo = Callable[[], None]


class ModuleRegistry:
    """Weak references to the modules that were built, and the names of what they hold."""

    def __init__(self) -> None:
        # By id() beside a weak reference: a module may define __eq__ and so have no hash.
        self._modules: dict[int, ReferenceType[Any]] = {}
        self._undo: list[Undo] = []

    def start(self) -> str | None:
        """Listen; or a sentence that says why this torch cannot be listened to."""
        from torch.nn.modules import module

        names = ("register_module_parameter_registration_hook", "register_module_module_registration_hook")
        hooks = [getattr(module, name, None) for name in names]
        if any(hook is None for hook in hooks):
            return "this torch does not say when a module gets its parameters (torch 2.0 and later do)"
        self._undo = [hook(self._registered).remove for hook in hooks if hook is not None]
        return None

    def stop(self) -> None:
        """Listen no more. What is known stays known."""
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
                for held, is_parameter in ((module._parameters, True), (module._buffers, False)):
                    for name, tensor in held.items():
                        if tensor is not None:
                            yield (f"{path}.{name}" if path else name), qualified, tensor, is_parameter

    def _registered(self, module: Any, name: str, held: Any) -> None:
        address = id(module)
        known = self._modules.get(address)
        if known is None or known() is not module:
            self._modules[address] = ref(module, lambda gone: self._forget(address, gone))

    def _forget(self, address: int, gone: Any) -> None:
        if self._modules.get(address) is gone:
            del self._modules[address]
