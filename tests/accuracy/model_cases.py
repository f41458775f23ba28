"""Labelled cases of models: hybrids of state spaces and attention, adapters in JAX."""

from __future__ import annotations

from tests.accuracy.case import Case, jax_program, torch_program

_FEW_PATCHES = ("--seq", "16", "--batch", "1")
_FEW_ROWS = ("--seq", "16", "--batch", "1")
_SCORES = "q_BHLK @ k_BHMK"

MODELS: tuple[Case, ...] = (
    *(
        Case(
            name=f"hybrid, {name}",
            framework="torch",
            mode="eager",
            source=torch_program("hybrid", "--variant", name, *more, size=size, steps=14),
            twin=torch_program("hybrid", "--variant", "fused", *more, size=size, steps=14),
            expects={rule: line},
        )
        for name, size, more, rule, line in (
            ("scan", "tiny", ("--seq", "32"), "unfused_ops", "a_BDN * h_BDN"),
            ("naive", "cpu", (), "unfused_attention", _SCORES),
        )
    ),
    *(
        Case(
            name=f"hybrid, {name}",
            framework="jax",
            mode="jit",
            source=jax_program("hybrid", "--variant", name, size="cpu", steps=14),
            twin=jax_program("hybrid", "--variant", "fused", size="cpu", steps=14),
            expects={rule: line},
        )
        for name, rule, line in (
            ("scan", "sequential_scan", "jax.lax.scan(advance"),
            ("naive", "unfused_attention", _SCORES),
        )
    ),
    Case(
        name="adapter, merged in each call",
        framework="jax",
        mode="jit",
        source=jax_program("lora", "--variant", "merged", *_FEW_ROWS, size="cpu", steps=14),
        twin=jax_program("lora", "--variant", "factors", *_FEW_ROWS, size="cpu", steps=14),
        expects={"constant_work": "weight_DF + SCALE"},
    ),
    *(
        Case(
            name=f"pictures, {name}",
            framework="torch" if framework == "torch" else "jax",
            mode="eager" if framework == "torch" else "jit",
            source=program("vision.classifier", "--defect", name, size="cpu"),
            twin=program("vision.classifier", size="cpu"),
            expects={rule: line},
        )
        for framework, program, name, rule, line in (
            ("torch", torch_program, "augment", "host_bound", "blocks.mean("),
            ("torch", torch_program, "accuracy", "host_sync", "right += int("),
            ("jax", jax_program, "augment", "host_bound", "blocks.mean("),
            ("jax", jax_program, "accuracy", "host_sync", "total += int(right)"),
        )
    ),
    Case(
        name="diffusion, weights converted in each call",
        framework="jax",
        mode="jit",
        source=jax_program("vision.diffusion", *_FEW_PATCHES, "--defect", "cast", size="cpu"),
        twin=jax_program("vision.diffusion", *_FEW_PATCHES, size="cpu"),
        expects={"constant_work": 'weights["weight_DG"].astype', "full_precision_matmul": None},
    ),
    Case(
        name="diffusion, a static step",
        framework="jax",
        mode="jit",
        source=jax_program("vision.diffusion", "--defect", "retrace", steps=9),
        twin=jax_program("vision.diffusion", steps=9),
        expects={"recompilation": "text_NMD, kept, step=step"},
    ),
)
