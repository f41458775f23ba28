"""The whole pretence: tensors are fakes of ``cuda:0``, torch and inductor take the device for there, nothing runs.

Only in a process of its own, after a trial in another one (``torch_pretend_run``). What torch does in C++ is in
``torch_pretend_hooks``, what ``torch.cuda`` answers in ``torch_cuda_answers``; here is what lies between in Python.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from perfscope._cut.torch_pretend_hooks import Hooks, MisfitError
from perfscope.profiler.ahead.torch.fake_tensors import to_host


class Pretence:
    """Installs it in this process, for good."""

    def __init__(self) -> None:
        self._hooks = Hooks()

    def install(self) -> None:
        """Before the first tensor; ``MisfitError`` in a line where the installed torch is not one that it fits."""
        self._hooks.install()
        try:
            _fakes_without_device()
            self._engine()
            _inductor_for_device()
            _constants_on_host()
        except (ImportError, AttributeError, TypeError) as error:
            raise MisfitError(f"a private part of torch has changed: {type(error).__name__}: {error}") from error

    def _engine(self) -> None:
        """The autograd engine asks for the device; it works in the thread that calls it, as for tensors of the CPU."""
        variable: Any = torch.autograd.Variable
        variable._execution_engine = _Engine(variable._execution_engine, self._hooks)
        torch.autograd.set_multithreading_enabled(False)


class _Engine:
    """Torch's engine, with a device while it runs."""

    def __init__(self, engine: Any, hooks: Hooks) -> None:
        self._engine, self._hooks = engine, hooks

    def run_backward(self, *arguments: Any, **named: Any) -> Any:
        """As of the engine."""
        return self._hooks.running(self._engine.run_backward, *arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def _fakes_without_device() -> None:
    """Fakes of a device for which nothing is asked of it: no context, and constants are made on the CPU first."""
    from torch._subclasses import fake_tensor

    if not hasattr(fake_tensor, "init_gpu_context"):
        raise AttributeError("fake_tensor.init_gpu_context is gone")
    if not isinstance(fake_tensor.FakeTensorMode.avoid_device_init, property):
        raise AttributeError("FakeTensorMode.avoid_device_init is gone")
    fake_tensor.init_gpu_context = lambda _: None
    fake_tensor.FakeTensorMode.avoid_device_init = property(lambda _: True)


def _inductor_for_device() -> None:
    """Inductor with kernels of libraries for products, as it chooses where it does not try candidates."""
    import torch._inductor.config as config
    from torch._dynamo import device_interface

    config.max_autotune_gemm_backends = "ATEN"
    cuda: Any = device_interface.CudaInterface
    for name in ("current_device", "set_device", "device_count", "stream", "current_stream", "synchronize"):
        setattr(cuda, name, staticmethod(_asking(name)))
    for name in ("get_device_properties", "memory_allocated", "is_bf16_supported"):
        setattr(cuda, name, staticmethod(_asking(name)))
    cuda.get_raw_stream = staticmethod(lambda *_: 0)
    cuda.exchange_device = cuda.maybe_exchange_device = staticmethod(lambda *_: 0)


def _asking(name: str) -> Any:
    """Asks ``torch.cuda`` when it is called, which does not answer like the target yet."""

    def ask(*arguments: Any, **named: Any) -> Any:
        return getattr(torch.cuda, name)(*arguments, **named)

    return ask


class _OnHost(TorchDispatchMode):  # type: ignore[misc]
    """What is made on the device is made on the CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op."""
        return func(*to_host(args), **to_host(kwargs or {}))


def _constants_on_host() -> None:
    """Inductor folds constants by computing them, of one element each: on the CPU their value is the same.

    What traces a graph computes constants of up to one element, too, on the device: it is told not to.
    """
    from torch._inductor.constant_folding import ConstantFolder
    from torch._inductor.fx_passes.joint_graph import UniformValueConstantFolder
    from torch.fx.experimental import proxy_tensor

    proxy_tensor.CONSTANT_NUMEL_LIMIT = -1
    for kind, name in ((ConstantFolder, "run"), (UniformValueConstantFolder, "__init__")):
        setattr(kind, name, _under(_OnHost, getattr(kind, name)))


def _under(mode: Callable[[], Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def called(*arguments: Any, **named: Any) -> Any:
        with mode():
            return original(*arguments, **named)

    return called
