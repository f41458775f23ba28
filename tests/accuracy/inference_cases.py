"""Labelled cases of inference and of adapters."""

from __future__ import annotations

from tests.accuracy.case import Case, jax_program, torch_program

_CACHES = {
    "growing": "torch.cat((",
    "masked": "torch.where(here_T",
    "beams": "index_select(1",
    "paged": "self.pages_2NPHK[:, used_BM]",
}
_FEW_PATCHES = ("--seq", "16", "--batch", "1")
_ADAPTERS = (
    (
        "adapter, merged in each call",
        ("--variant", "merged", "--seq", "24"),
        "factors",
        {"constant_work": "weight_GD = self.base"},
    ),
    ("adapter, trained base", ("--defect", "trained-base"), "factors", {"frozen_gradients": "base_BLG = self.base("}),
    ("adapter, merged for its norm", ("--variant", "dora-merged"), "dora", {"constant_work": ".norm(dim=1)"}),
    ("adapter, base of 4 bits", ("--variant", "quantised"), "kept", {"constant_work": "self.levels[codes]"}),
)

_PROGRAMS = (
    ("batches that wait for their longest text", "serve", ("--variant", "static"), ("--variant", "continuous"), 8,
     {"batch_bubble": "torch.where(busy_B"}),
    ("sampling row by row", "sample", ("--defect", "rows"), (), 60, {"host_sync": "order_V[place_1].item()"}),
    ("drafts compared on the host", "speculate", ("--defect", "accept"), (), 30,
     {"host_sync": "drafted_G[count].item()"}),
)  # fmt: skip

INFERENCE: tuple[Case, ...] = (
    *(
        Case(
            name=name,
            framework="torch",
            mode="eager",
            source=torch_program(f"inference.{program}", *defect, size="cpu", steps=steps),
            twin=torch_program(f"inference.{program}", *twin, size="cpu", steps=steps),
            expects=expects,
        )
        for name, program, defect, twin, steps, expects in _PROGRAMS
    ),
    *(
        Case(
            name=f"products of quantised weights, {plain}",
            framework="torch",
            mode="eager",
            source=torch_program("inference.quantized", "--variant", plain, size="cpu", steps=40),
            twin=torch_program("inference.quantized", "--variant", plain[: plain.index("-")], size="cpu", steps=40),
            expects={"constant_work": line},
        )
        for plain, line in (("fp8-widened", "wide_VD = "), ("int4-unpacked", "scale_VQ.unsqueeze(-1)).flatten(1)"))
    ),
    *(
        Case(
            name=f"cache, {name}",
            framework="torch",
            mode="eager",
            source=torch_program("decode", "--variant", name, size="cpu", steps=40),
            twin=torch_program("decode", "--variant", "static", size="cpu", steps=40),
            expects={"data_movement": line},
        )
        for name, line in _CACHES.items()
    ),
    Case(
        name="diffusion, weights converted in each call",
        framework="torch",
        mode="eager",
        source=torch_program(
            "vision.diffusion", "--seq", "16", "--batch", "1", "--defect", "cast", size="cpu", steps=24
        ),
        twin=torch_program("vision.diffusion", "--seq", "16", "--batch", "1", size="cpu", steps=24),
        expects={"constant_work": "self.weight.to(x_D.dtype)"},
    ),
    *(
        Case(
            name=name,
            framework="torch",
            mode="eager",
            source=torch_program("lora", *arguments, size="cpu", steps=14),
            twin=torch_program("lora", "--variant", twin, *arguments[2:], size="cpu", steps=14),
            expects=expects,
        )
        for name, arguments, twin, expects in _ADAPTERS
    ),
    Case(
        name="cache in slices",
        framework="jax",
        mode="jit",
        source=jax_program("decode", "--variant", "slices", size="cpu", steps=40),
        twin=jax_program("decode", "--variant", "carry", size="cpu", steps=40),
        expects={"data_movement": "jax.lax.scan(layer, x_BLD, given)"},
    ),
)
