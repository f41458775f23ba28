"""Which machines `perfscope compile` can compile for here: compilers are looked for, none is loaded."""

from __future__ import annotations

from perfscope.commands.doctor import Check, Status

NAMES = {
    "gpu-nvidia": "JAX for NVIDIA GPUs",
    "gpu-amd": "JAX for AMD GPUs",
    "tpu": "JAX for TPUs",
    "torch": "PyTorch for GPUs (planned)",
}
PRETENCE = "PyTorch with --pretend-device"
MOVE = "a folder of its own, named by PERFSCOPE_PLUGINS, is not on its path"


def target_checks() -> list[Check]:
    """One line a platform; the command that brings what is not here."""
    from perfscope.profiler.ahead.targets import plugins

    checks = []
    for kind in plugins.KINDS:
        found = plugins.find(kind)
        if isinstance(found, plugins.MissingPlugin):
            status: Status = "problem" if found.wrong else "absent"
            checks.append(Check(name=NAMES[kind], status=status, text=found.reason, advice=found.install))
            continue
        text = ", ".join(f"{name} {version}" for name, version in found.versions.items())
        advice = found.note
        if not found.own_folder and kind in ("gpu-nvidia", "tpu"):
            advice = f"beside a jax without such a device it makes jax print errors at every start: {MOVE}"
        checks.append(Check(name=NAMES[kind], status="ok", text=text, advice=advice))
        if kind == "torch":
            checks.append(_pretence(found.versions["torch"]))
    return checks


def _pretence(version: str) -> Check:
    """Whether the device can be pretended to this torch: by what is known of it, nothing is tried."""
    from perfscope._cut.torch_pretend_fit import unfit

    # Wheels for the CPU say so; those without a word are for CUDA on the only system that it is made for.
    why = unfit(version, for_gpu="+cpu" not in version)
    if why is not None:
        return Check(name=PRETENCE, status="absent", text=f"{why}: it plans over CPU tensors")
    text = f"torch {version} is one it was tried with; each run tries it in a process of its own first"
    return Check(name=PRETENCE, status="ok", text=text)
