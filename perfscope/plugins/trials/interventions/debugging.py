"""Debugging switches that were left on and make every op slower."""

from __future__ import annotations

from typing import Any

from perfscope.plugins.trials.interventions.base import Application, Intervention
from perfscope.profiler.patching import wrap

JAX_SWITCHES = ("jax_disable_jit", "jax_debug_nans", "jax_debug_infs", "jax_check_tracer_leaks", "jax_enable_checks")


def _torch(application: Application) -> None:
    """Keep autograd's anomaly detection off, whatever the program sets."""
    import torch
    from torch.autograd import anomaly_mode

    for kind in (anomaly_mode.detect_anomaly, anomaly_mode.set_detect_anomaly):

        def make(original: Any, name: str = kind.__name__) -> Any:
            def __init__(switch: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807
                original(switch, *arguments, **named)
                if torch.is_anomaly_enabled():  # set_detect_anomaly takes effect when it is created
                    torch.autograd.set_detect_anomaly(False)
                    application.changed(f"{name} is off")

            return __init__

        wrap(kind, "__init__", make)

    def entering(original: Any) -> Any:
        def __enter__(switch: Any) -> None:  # noqa: N807
            original(switch)
            torch.autograd.set_detect_anomaly(False)
            application.changed("detect_anomaly is off")

        return __enter__

    wrap(anomaly_mode.detect_anomaly, "__enter__", entering)


def _jax(application: Application) -> None:
    """Turn switches of jax's configuration off and keep them off."""
    import jax

    for name in JAX_SWITCHES:
        if getattr(jax.config, name, False):
            jax.config.update(name, False)
            application.changed(f"{name} is off")

    def make(original: Any) -> Any:
        def update(config: Any, name: str, value: Any) -> Any:
            if name in JAX_SWITCHES and value:
                application.changed(f"{name} is off")
                value = False
            return original(config, name, value)

        return update

    wrap(type(jax.config), "update", make)


TORCH_DEBUG_OFF = Intervention(
    name="debug-off",
    title="autograd's anomaly detection off",
    family="debugging",
    evident=True,
    framework="torch",
    answers=("debug_mode", "host_bound", "launch_bound", "small_kernels", "unfused_ops"),
    may_change="A NaN in the backward pass raises no error.",
    code="torch.autograd.set_detect_anomaly(False)",
    apply=_torch,
)
JAX_DEBUG_OFF = Intervention(
    name="jax-debug-off",
    title="jit on, checks for NaN off",
    family="debugging",
    evident=True,
    framework="jax",
    answers=("host_bound", "launch_bound", "small_kernels", "unfused_ops", "host_sync"),
    may_change="Compiled functions fuse and sum in another order; a NaN raises no error.",
    code='jax.config.update("jax_disable_jit", False)\njax.config.update("jax_debug_nans", False)',
    apply=_jax,
)
