"""Steps made by hand: layers that each make a value for their own backward, on an axis that can be counted."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from perfscope.plugins.memory_advice.step_model import Region, StepModel, Value


def value(bytes_: int, birth: int, death: int, **more: Any) -> Value:
    """A value of the forward outside of all regions, without readers by default."""
    given = {"last_forward_use": birth, "kind": "other", "region": None, "needed_by": frozenset(), "cost_ns": 0}
    return Value(bytes=bytes_, birth=birth, death=death, **(given | more))


def layers(
    count: int, *, held: int = 1_000, activation: int = 100, product: int = 40, temporary: int = 8, gradient: int = 10
) -> StepModel:
    """``count`` layers of 4 ops each; the backward of each is 2 ops, in reverse, after 2 ops of the loss.

    Op 0 of a layer makes a product of ``product`` bytes (30 ns), op 1 an activation of ``activation`` bytes from it (10
    ns), both for the layer's backward; op 2 makes a temporary (5 ns), op 3 the output that the backward of the next
    layer needs. A layer's backward makes a gradient that lives to the end.
    """
    values: list[Value] = []
    regions: list[Region] = []
    forward_end = 4 * count
    length = forward_end + 2 + 2 * count
    for layer in range(count):
        first, back = 4 * layer, forward_end + 2 + 2 * (count - 1 - layer)
        own, after = frozenset({layer}), frozenset({layer + 1 if layer + 1 < count else None})
        more: dict[str, Any] = {"region": layer}
        values += [
            value(
                product, first, back + 2, needed_by=own, last_forward_use=first + 1, kind="product", cost_ns=30, **more
            ),
            value(activation, first + 1, back + 2, needed_by=own, last_forward_use=first + 2, cost_ns=10, **more),
            value(temporary, first + 2, first + 4, last_forward_use=first + 3, cost_ns=5, **more),
            value(16, first + 3, back, needed_by=after, last_forward_use=first + 4, cost_ns=1, **more),
            value(gradient, back + 1, length, gradient=True),
        ]
        regions.append(
            Region(
                name=f"Model.blocks.{layer}",
                group="Model.blocks.*",
                forward=(first, first + 4),
                backward=(back, back + 2),
                input_bytes=0,
                parameter_bytes=100,
            )
        )
    return StepModel(
        label="cuda:0",
        values=tuple(values),
        regions=tuple(regions),
        length=length,
        parameter_bytes=held // 2,
        gradient_bytes=gradient * count,
        optimizer_bytes=held - held // 2,
        other_bytes=0,
        gradients_in_values=True,
        step_ns=1_000,
        basis="measured",
        capacity_bytes=None,
        device_name="NVIDIA H100 80GB HBM3",
    )


def checkpointed(model: StepModel, *, selective: bool = False) -> StepModel:
    """The same step as if all layers were checkpointed in the recording."""
    regions = tuple(replace(region, today="selective" if selective else "full") for region in model.regions)
    return replace(model, regions=regions)
