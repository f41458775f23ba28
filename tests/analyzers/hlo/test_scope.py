"""``op_name`` into scope path, phase and primitive."""

from __future__ import annotations

import pytest

from perfscope.analyzers.hlo.scope import Scope, scope_of, scopes_of


@pytest.mark.parametrize(
    ("name", "path", "phase", "primitive"),
    [
        ("jit(f)/add", (), "forward", "add"),
        ("jit(f)/jvp(experts)/ecd,edf->ecf/dot_general", ("experts", "ecd,edf->ecf"), "forward", "dot_general"),
        ("jit(f)/transpose(jvp(experts))/mul", ("experts",), "backward", "mul"),
        ("jit(f)/jit(main)/jvp(Net)/layer_0/dot_general", ("Net", "layer_0"), "forward", "dot_general"),
        ("jit(f)/transpose(jvp(jit(attn)))/while/body/closed_call/mul", ("attn",), "backward", "mul"),
        ("jit(f)/jvp()/while", (), "forward", "while"),
        ("jit(f)/jvp()/while/cond/lt", (), "forward", "lt"),
        ("jit(f)/jit(main)/jvp(while)/body/mlp/tanh", ("mlp",), "forward", "tanh"),
        ("jit(f)/jit(main)/transpose(jvp(while))/cond/lt", (), "backward", "lt"),
        ("jit(f)/jit(main)/transpose(jvp(dot_general))", (), "backward", "dot_general"),
        ("jit(f)", (), "forward", "jit(f)"),
        ("jit(f)/jvp()", (), "forward", "jvp()"),
        ("jit(f)/cond/branch_1_fun/moe/top_k", ("moe",), "forward", "top_k"),
        ("jit(f)/body/add", ("body",), "forward", "add"),
        ("jit(f)/vmap(layers.call)/heads/exp", ("layers.call", "heads"), "forward", "exp"),
        ("jit(f)/transpose(jvp())/checkpoint/rematted_computation/mlp/tanh", ("mlp",), "recompute", "tanh"),
        ("jit(f)/transpose(jvp())/checkpoint/mlp/mul", ("mlp",), "backward", "mul"),
        ("jit(f)/jvp()/checkpoint/mlp/mul", ("mlp",), "forward", "mul"),
        ("jit(<lambda>)/shard_map/ppermute", (), "forward", "ppermute"),
        ("a[1]['w']", (), "forward", "a[1]['w']"),
        ("", (), "forward", ""),
    ],
)
def test_names(name: str, path: tuple[str, ...], phase: str, primitive: str) -> None:
    assert scope_of(name) == Scope(path=path, phase=phase, primitive=primitive)  # type: ignore[arg-type]


def test_a_combined_collective_has_every_origin_once() -> None:
    found = scopes_of("jit(f)/(jvp(mlp)/reduce_sum:transpose(jvp(mlp))/dot_general:transpose(jvp(mlp))/dot_general)")
    assert [(one.label, one.phase) for one in found] == [("mlp/reduce_sum", "forward"), ("mlp/dot_general", "backward")]


def test_hostile_nesting_and_open_brackets_end() -> None:
    deep = "jit(" * 50_000 + "x" + ")" * 50_000
    assert scope_of(f"jit(f)/{deep}/add").primitive == "add"
    assert scope_of(")))((a/b:c").phase == "forward"
