"""Targets of `perfscope compile` on this machine: compilers are looked up, but not loaded."""

from __future__ import annotations

from perfscope.model.environment import Check, Status
from perfscope.plugins.ahead.targets import plugins

NAMES = {
    "gpu-nvidia": "JAX for NVIDIA GPUs",
    "gpu-amd": "JAX for AMD GPUs",
    "tpu": "JAX for TPUs",
    "torch": "PyTorch for GPUs (planned)",
}
MOVE = "the folder in which `perfscope setup` puts it is not on its path"


def target_checks() -> list[Check]:
    """One line per platform, with the command that installs a missing compiler."""
    checks = []
    for kind in plugins.KINDS:
        result = plugins.find(kind)
        if isinstance(result, plugins.MissingPlugin):
            status: Status = "problem" if result.wrong else "absent"
            checks.append(Check(name=NAMES[kind], status=status, text=result.reason, advice=result.install))
            continue
        text = ", ".join(f"{name} {version}" for name, version in result.versions.items())
        advice = result.note
        if not result.own_folder and kind in ("gpu-nvidia", "tpu"):
            advice = f"next to a jax without such a device it makes jax print errors at every start: {MOVE}"
        checks.append(Check(name=NAMES[kind], status="ok", text=text, advice=advice))
    return checks
