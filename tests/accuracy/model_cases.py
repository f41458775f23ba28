"""Labelled cases of models: hybrids of state spaces and attention, adapters in JAX."""

from __future__ import annotations

from tests.accuracy.case import Case, jax_program, torch_program

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
        source=jax_program("lora", "--variant", "merged", "--seq", "24", size="cpu", steps=14),
        twin=jax_program("lora", "--variant", "factors", "--seq", "24", size="cpu", steps=14),
        expects={"constant_work": "weight_DF + SCALE"},
    ),
)
