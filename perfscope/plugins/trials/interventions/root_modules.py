"""The models of a PyTorch program: modules that it calls directly, not from inside another module.

They are found in the first step with torch's public hooks of all modules. Then these hooks are removed, because they
cost time in each call and torch.compile would compile them; wrapped calls of the models remain. Hooks of a single model
would be saved and copied with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from perfscope.profiler.torch.watched_calls import watch_calls


def _same(_module: Any, _arguments: tuple[Any, ...]) -> Any:
    return None


def _ignore(*_: Any) -> None:
    return None


def repeated_blocks(root: Any) -> Iterator[tuple[str, list[Any]]]:
    """Name of a class, and its members with submodules in a list of ``root`` that holds several of them."""
    import torch

    for holder in list(root.modules()):
        kinds: dict[str, list[Any]] = {}
        if isinstance(holder, torch.nn.ModuleList | torch.nn.Sequential):
            for block in holder:
                if any(True for _ in block.children()):
                    kinds.setdefault(type(block).__name__, []).append(block)
        yield from ((kind, blocks) for kind, blocks in kinds.items() if len(blocks) > 1)


class RootModules:
    """Finds the models of the program and hooks their calls."""

    def __init__(
        self,
        *,
        enter: Callable[[Any, tuple[Any, ...]], Any] = _same,
        leave: Callable[[Any, Any], None] = _ignore,
        found: Callable[[list[Any]], None] = _ignore,
        inner: Callable[[Any, Any, Any], None] = _ignore,
    ) -> None:
        """Start to search. Callbacks run on the thread that imported torch.

        ``enter(module, arguments)``: before each call of a model; its result replaces the arguments, unless it is
        ``None``. ``leave(module, output)``: after the call. ``found(modules)``: once, after the first step, with all
        models. ``inner(model, module, output)``: in the first call of a model, after each call of a module in it.
        """
        from torch.nn.modules import module
        from torch.optim import optimizer

        self._enter_model, self._leave_model, self._found, self._inner = enter, leave, found, inner
        self._thread = threading.get_ident()
        self._depth = 0
        self._again = False
        self._roots: list[Any] = []
        self._handles: list[Any] = [
            module.register_module_forward_pre_hook(self._enter),
            module.register_module_forward_hook(self._leave, always_call=True),
        ]
        # Not removed here: torch iterates over its hooks while calling them.
        optimizer.register_optimizer_step_pre_hook(self._optimizer_steps)

    def _enter(self, module: Any, arguments: tuple[Any, ...]) -> Any:
        import torch

        if torch.compiler.is_compiling() or threading.get_ident() != self._thread:
            return None
        self._depth += 1
        if self._depth > 1:
            return None
        self._again = any(module is root for root in self._roots)
        if not self._again:
            self._roots.append(module)
        return self._enter_model(module, arguments)

    def _leave(self, module: Any, _arguments: Any, output: Any) -> None:
        import torch

        if torch.compiler.is_compiling() or threading.get_ident() != self._thread or not self._depth:
            return
        self._depth -= 1
        if self._depth == 0:
            self._leave_model(module, output)
            if self._again:  # a model was called again: a step has ended
                self._close()
        elif not self._again:
            self._inner(self._roots[-1], module, output)

    def _optimizer_steps(self, *_: Any) -> None:
        if self._handles and self._roots and self._depth == 0:
            self._close()

    def _close(self) -> None:
        """All models are known: hook only them from now on."""
        while self._handles:
            self._handles.pop().remove()
        if self._enter_model is not _same or self._leave_model is not _ignore:
            for root in self._roots:
                watch_calls(root, self._around)
        self._found(self._roots)

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(model: Any, *arguments: Any, **named: Any) -> Any:
            entered = self._enter_model(model, arguments)
            arguments = arguments if entered is None else entered
            output = None
            try:
                output = original(model, *arguments, **named)
                return output
            finally:
                self._leave_model(model, output)

        return call
