"""Which machines `perfscope compile` can compile for here: compilers are looked for, none is loaded."""

from __future__ import annotations

from perfscope.commands.doctor import Check, Status

NAMES = {
    "gpu-nvidia": "JAX for NVIDIA GPUs",
    "gpu-amd": "JAX for AMD GPUs",
    "tpu": "JAX for TPUs",
    "torch": "PyTorch for GPUs (planned)",
}
MOVE = "a folder of its own, named by PERFSCOPE_PLUGINS, is not on its path"


def target_checks() -> list[Check]:
    """One line a platform; the command that brings what is not here."""
    from perfscope.profiler.aot import plugins

    checks = []
    for kind in plugins.KINDS:
        found = plugins.find(kind)
        if isinstance(found, plugins.Absent):
            status: Status = "problem" if found.wrong else "absent"
            checks.append(Check(name=NAMES[kind], status=status, text=found.reason, advice=found.install))
            continue
        text = ", ".join(f"{name} {version}" for name, version in found.versions.items())
        advice = found.note
        if not found.own_folder and kind in ("gpu-nvidia", "tpu"):
            advice = f"beside a jax without such a device it makes jax print errors at every start: {MOVE}"
        checks.append(Check(name=NAMES[kind], status="ok", text=text, advice=advice))
    return checks
