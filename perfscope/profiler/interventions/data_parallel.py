"""Options of PyTorch's DistributedDataParallel."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from perfscope.profiler.interventions.base import Application, Intervention, needs_ranks
from perfscope.profiler.patching import wrap

BUCKET_MB = 100
"""Four times the default: fewer, larger reductions."""


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


_ANSWERS = ("exposed_communication", "small_collectives")

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
