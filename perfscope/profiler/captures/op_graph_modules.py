"""Which ``nn.Module`` an op belongs to: a stack per thread, kept by global forward hooks."""

from __future__ import annotations

import threading
from typing import Any
from weakref import ReferenceType, ref

from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class ModuleStack:
    """Names modules ``Model.blocks.0.attention``: the class of the outermost one, then the attribute path.

    The same names as ``torch.utils.module_tracker``; two models of one program stay distinct by class.
    """

    def __init__(self) -> None:
        # By id() beside a weak reference: a module may define __eq__ and so have no hash.
        self._names: dict[int, tuple[ReferenceType[Any], str]] = {}
        self._owners: dict[int, tuple[ReferenceType[Any], str]] = {}
        self._roots: list[ReferenceType[Any]] = []
        self._local = threading.local()
        self._handles: list[Any] = []

    def start(self) -> None:
        """Puts the hooks in. They run for every module of the process until ``stop()``."""
        # always_call: a forward that raises (early stop of checkpointing, a caught error) must leave too.
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]

    def stop(self) -> None:
        """Takes the hooks out."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def innermost(self) -> str:
        """Name of the module whose forward runs on this thread, or ``''``."""
        stack = self._stack()
        return stack[-1][1] if stack else ""

    def parameters(self) -> list[Any]:
        """Parameters and buffers of every outermost module that ran. Do not keep them."""
        roots = [module for root in self._roots if (module := root()) is not None]
        return [tensor for root in roots for tensor in (*root.parameters(), *root.buffers())]

    def owner(self, parameter: Any) -> str:
        """Name of the module that holds this parameter, or ``''``."""
        return _look_up(self._owners, parameter) or ""

    def _enter(self, module: Any, inputs: Any) -> None:
        name = _look_up(self._names, module) or self._adopt(module)
        self._stack().append((id(module), name))

    def _leave(self, module: Any, inputs: Any, output: Any) -> None:
        stack = self._stack()
        if any(entered == id(module) for entered, _ in stack):
            while stack.pop()[0] != id(module):
                pass

    def _adopt(self, root: Any) -> str:
        prefix = type(root).__name__
        self._roots.append(ref(root))
        for path, module in root.named_modules():
            name = f"{prefix}.{path}" if path else prefix
            self._names[id(module)] = (ref(module), name)
            for parameter in module.parameters(recurse=False):
                self._owners[id(parameter)] = (ref(parameter), name)
        return prefix

    def _stack(self) -> list[tuple[int, str]]:
        stack: list[tuple[int, str]] | None = getattr(self._local, "stack", None)
        if stack is None:
            stack = self._local.stack = []
        return stack


def _look_up(names: dict[int, tuple[ReferenceType[Any], str]], thing: Any) -> str | None:
    entry = names.get(id(thing))
    return entry[1] if entry is not None and entry[0]() is thing else None
