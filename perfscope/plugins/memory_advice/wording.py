"""A plan in words, and the code that makes a program follow it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from perfscope.plugins.memory_advice.plans import Group, Plan, Unit, groups_of
from perfscope.plugins.memory_advice.simulate import Placement, todays
from perfscope.plugins.memory_advice.step_model import KEPT_PRODUCTS, Policy, StepModel

NAMES: dict[Policy, str] = {
    "full": "checkpoint",
    "selective": "checkpoint selectively",
    "offload": "activations to the host:",
}

MOST_NAMED = 3
"""Most modules named one by one if they have no numbers."""

_ZERO = {1: "optimizer state", 2: "optimizer state and gradients", 3: "optimizer state, gradients and parameters"}

_JAX = {
    "full": "jax.checkpoint({})",
    "selective": "jax.checkpoint({}, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)",
    "offload": "jax.checkpoint({}, policy=jax.checkpoint_policies.offload_dot_with_no_batch_dims("
    "'device', 'pinned_host'))",
}


def describe(model: StepModel, plan: Plan) -> str:
    """One line: the modules that are checkpointed or offloaded, and what is divided among devices."""
    parts = [
        f"{NAMES[policy]} {_members(group, units)}"
        for group in groups_of(model)
        for policy, units in _by_policy(plan.policies, group).items()
        if policy != "keep"
    ]
    parts += describe_placement(plan.placement)
    return "; ".join(parts) or "keep all activations"


def describe_placement(placement: Placement) -> list[str]:
    """Location of state, if not everything is on every device."""
    parts = []
    if placement.level and placement.devices > 1:
        parts.append(f"ZeRO-{placement.level} on {placement.devices} devices")
    if placement.optimizer_on_host:
        parts.append("optimizer state on the host")
    return parts


def code_for(model: StepModel, plan: Plan) -> tuple[str, ...]:
    """Lines to write. Empty if nothing changes."""
    lines = _jax(model, plan) if model.framework == "jax" else _torch(model, plan)
    return tuple(lines)


def _by_policy(policies: Sequence[Policy], group: Group) -> dict[Policy, list[Unit]]:
    units: dict[Policy, list[Unit]] = defaultdict(list)
    for unit in group.units:
        units[policies[unit.regions[0]]].append(unit)
    return units


def _members(group: Group, units: Sequence[Unit]) -> str:
    """``blocks[0:6] of 8`` of ``Model.blocks.*``; the names if they have no numbers."""
    numbers = [_number(unit.name) for unit in units]
    path = _container(group)
    if None in numbers or not path:
        names = list(dict.fromkeys(_path(unit.name) or unit.name for unit in units))
        if len(names) <= MOST_NAMED:
            return ", ".join(names)
        return f"{', '.join(names[: MOST_NAMED - 1])} and {len(names) - MOST_NAMED + 1} more"
    known = sorted(number for number in numbers if number is not None)
    if len(units) == len(group.units):
        return f"all {len(units)} of {path}" if len(units) > 1 else f"{path}[{known[0]}]"
    if known == list(range(known[0], known[-1] + 1)):
        span = f"[{known[0]}:{known[-1] + 1}]" if len(known) > 1 else f"[{known[0]}]"
        return f"{path}{span} ({len(known)} of {len(group.units)})"
    return f"{path}[{', '.join(map(str, known))}] ({len(known)} of {len(group.units)})"


def _number(name: str) -> int | None:
    last = name.rpartition(".")[2]
    return int(last) if last.isascii() and last.isdigit() and len(last) < 10 else None


def _container(group: Group) -> str:
    """The container of a group's modules as an attribute of the model; ``model`` itself; empty without one."""
    name = group.units[0].name.rpartition(".")[0]
    return _path(name) or ("model" if name.isidentifier() else "")


def _path(name: str) -> str:
    """A module as an attribute of the model: its name without the root's class; empty if it is not a module's name."""
    root, _, path = name.partition(".")
    return path if root.isidentifier() else ""


def _torch(model: StepModel, plan: Plan) -> list[str]:
    groups = groups_of(model)
    chosen = [
        (policy, group, units)
        for group in groups
        for policy, units in _by_policy(plan.policies, group).items()
        if policy != "keep"
    ]
    lines: list[str] = []
    if any(policy != "keep" for policy in todays(model)) and plan.policies != todays(model):
        lines += ["# take today's checkpoint() around the modules away", ""]
    kinds: set[Policy] = {policy for policy, _, _ in chosen}
    if plan.policies != todays(model):
        lines += _torch_head(kinds)
        for policy, group, units in chosen:
            lines += _torch_wrap(policy, group, units)
    placed = _torch_placement(groups, plan.placement)
    return [*lines, *([""] if lines and placed else []), *placed]


def _torch_head(kinds: set[Policy]) -> list[str]:
    lines: list[str] = []
    home = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
    wanted = [
        name
        for name, of in (("checkpoint_wrapper", {"full", "selective"}), ("offload_wrapper", {"offload"}))
        if kinds & of
    ]
    if "selective" in kinds:
        lines += ["from functools import partial", ""]
    if wanted:
        lines.append(f"from {home} import {', '.join(wanted)}")
    if "selective" in kinds:
        lines += [
            "from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts",
            "",
            f"KEPT = {KEPT_PRODUCTS}",
            "",
            "def policy(context, op, *args, **kwargs):",
            "    name = op.__name__.partition('.')[0]",
            "    keep = name in KEPT or 'attention' in name",
            "    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE",
            "",
            "contexts = partial(create_selective_checkpoint_contexts, policy)",
        ]
    return [*lines, ""] if lines else lines


def _torch_wrap(policy: Policy, group: Group, units: Sequence[Unit]) -> list[str]:
    call = {
        "full": "checkpoint_wrapper({})",
        "selective": "checkpoint_wrapper({}, context_fn=contexts)",
        "offload": "offload_wrapper({})",
    }[policy]
    numbers = [_number(unit.name) for unit in units]
    container = _python(_container(group))
    if None in numbers or not container or len(units) == 1:
        return [
            f"{expression} = {call.format(expression)}"
            for unit in units
            if (expression := _python(_path(unit.name)) or "model")
        ]
    known = sorted(number for number in numbers if number is not None)
    adjacent = known == list(range(known[0], known[-1] + 1))
    span = f"range({known[0]}, {known[-1] + 1})" if adjacent else f"({', '.join(map(str, known))})"
    expression = f"{container}[index]"
    return [f"for index in {span}:", f"    {expression} = {call.format(expression)}"]


def _python(path: str) -> str:
    """``blocks.0.mlp`` as an expression: ``model.blocks[0].mlp``."""
    if path in ("", "model"):
        return path
    expression = "model"
    for part in path.split("."):
        expression += f"[{part}]" if part.isdigit() else f".{part}" if part.isidentifier() else f"[{part!r}]"
    return expression


def _torch_placement(groups: Sequence[Group], placement: Placement) -> list[str]:
    lines: list[str] = []
    if placement.level == 1:
        lines = [
            "from torch.distributed.optim import ZeroRedundancyOptimizer",
            "",
            "optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=lr)",
        ]
    elif placement.level:
        keep = "" if placement.level == 3 else ", reshard_after_forward=False"
        lines = ["from torch.distributed.fsdp import fully_shard", ""]
        for group in groups:
            container = _python(_container(group))
            if len(group.units) > 1 and container:
                lines += [f"for block in {container}:", f"    fully_shard(block{keep})"]
        lines.append(f"fully_shard(model{keep})")
    if placement.optimizer_on_host:
        lines += [
            *([""] if lines else []),
            "from torchao.optim import CPUOffloadOptimizer",
            "",
            "optimizer = CPUOffloadOptimizer(model.parameters(), torch.optim.AdamW, lr=lr)",
        ]
    return lines


def _jax(model: StepModel, plan: Plan) -> list[str]:
    lines: list[str] = []
    if plan.policies != todays(model):
        if any(policy != "keep" for policy in todays(model)):
            lines += ["# take today's jax.checkpoint around the layers away"]
        for group in groups_of(model):
            for policy, units in _by_policy(plan.policies, group).items():
                if policy == "keep":
                    continue
                lines.append(f"# {', '.join(dict.fromkeys(unit.name for unit in units))}")
                lines.append(f"layer = {_JAX[policy].format('layer')}")
    placement = plan.placement
    if placement.level:
        lines += [
            f"mesh = jax.make_mesh(({placement.devices},), ('data',))",
            f"# {_ZERO[placement.level]}: jax.device_put(leaf, NamedSharding(mesh, PartitionSpec('data')))",
        ]
    if placement.optimizer_on_host:
        lines.append("# optimizer state: NamedSharding(mesh, PartitionSpec(), memory_kind='pinned_host')")
    return lines
