"""Options of PyTorch's DistributedDataParallel."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from perfscope.plugins.trials.interventions.base import Application, Intervention, needs_ranks
from perfscope.profiler.patching import wrap

BUCKET_MB = 100
"""Four times the default: fewer, larger reductions."""

_ANSWERS = ("exposed_communication", "small_collectives")


def _option(name: str, value: Any, application: Application) -> None:
    from torch.nn.parallel import DistributedDataParallel

    def make(original: Any) -> Any:
        signature = inspect.signature(original)

        def __init__(model: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807
            bound = signature.bind(model, *arguments, **named)
            if bound.arguments.get(name) == value:
                application.left("it has that already")
            else:
                bound.arguments[name] = value
                application.changed(f"DistributedDataParallel({name}={value})")
            original(*bound.args, **bound.kwargs)

        return __init__

    wrap(DistributedDataParallel, "__init__", make)


def _no_sync(application: Application) -> None:
    """If a step has several forward passes that keep gradients, reduce over ranks only in the last one.

    Their number is counted in the previous step. A step ends with an optimizer's ``step``.
    """
    import torch
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import optimizer

    passes, usual = [0], [0]

    def stepped(*_: Any) -> None:
        usual[0], passes[0] = passes[0], 0
        if usual[0] == 1:
            application.left("a step has one pass")

    def make(original: Any) -> Any:
        def forward(model: Any, *arguments: Any, **named: Any) -> Any:
            passes[0] += torch.is_grad_enabled()
            if not torch.is_grad_enabled() or passes[0] >= usual[0]:
                return original(model, *arguments, **named)
            application.changed(f"{usual[0] - 1} of {usual[0]} passes of a step run under no_sync()")
            with model.no_sync():
                return original(model, *arguments, **named)

        return forward

    optimizer.register_optimizer_step_post_hook(stepped)
    wrap(DistributedDataParallel, "forward", make)


LARGE_BUCKETS = Intervention(
    name="ddp-large-buckets",
    title="larger buckets of gradients",
    family="ddp buckets",
    framework="torch",
    answers=_ANSWERS,
    may_change="Gradients are summed over ranks in other groups.",
    code=f"model = DistributedDataParallel(model, bucket_cap_mb={BUCKET_MB})",
    applies=needs_ranks,
    apply=partial(_option, "bucket_cap_mb", BUCKET_MB),
)
STATIC_GRAPH = Intervention(
    name="ddp-static-graph",
    title="a graph that does not change",
    family="ddp graph",
    framework="torch",
    answers=_ANSWERS,
    may_change="Wrong gradients or an error if the parameters that are used differ between steps.",
    code="model = DistributedDataParallel(model, static_graph=True)",
    applies=needs_ranks,
    apply=partial(_option, "static_graph", True),
)
BUCKET_VIEW = Intervention(
    name="ddp-bucket-view",
    title="gradients that lie in the buckets",
    family="ddp view",
    framework="torch",
    answers=(*_ANSWERS, "oom_near"),
    may_change="Nothing; a gradient is a view, which cannot be detached in place.",
    code="model = DistributedDataParallel(model, gradient_as_bucket_view=True)",
    applies=needs_ranks,
    apply=partial(_option, "gradient_as_bucket_view", True),
)
NO_SYNC = Intervention(
    name="ddp-no-sync",
    title="one reduction for all passes of a step",
    family="ddp accumulation",
    framework="torch",
    answers=("repeated_reductions", *_ANSWERS, "blocking_collective"),
    may_change="Gradients are summed over passes first, then over ranks.",
    code="with model.no_sync():  # all passes of a step but the last\n    loss_of(model(batch)).backward()",
    applies=needs_ranks,
    apply=_no_sync,
)
