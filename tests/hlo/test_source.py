"""Lines that instructions without one serve."""

from __future__ import annotations

import pytest

from perfscope.analyzers.hlo.module import Computation
from perfscope.analyzers.hlo.scope import FURTHEST, FrameTable, is_library, scope_of, scopes_of, served, users_of
from tests.hlo_build import hlo_module

META = 'metadata={op_name="jit(step)/while" source_file="train.py" source_line=9}'


def entry(text: str) -> Computation:
    return hlo_module(f"ENTRY %main (a: f32[8]) -> f32[8] {{\n{text}\n}}").entry_computation()


def line_of(computation: Computation, name: str) -> int | None:
    reader = served(computation.by_name[name], users_of(computation))
    return None if reader is None else reader.line


def test_a_copy_serves_what_reads_it_through_others_without_a_line() -> None:
    found = entry(
        f"""
        %a = f32[8]{{0}} parameter(0)
        %zeros = f32[8]{{0}} copy(%a)
        %again = f32[8]{{0}} copy(%zeros)
        %made = f32[8]{{0}} negate(%again), {META}
        ROOT %out = f32[8]{{0}} copy(%made)
        """
    )
    assert [line_of(found, name) for name in ("zeros", "again", "a")] == [9, 9, 9]
    assert line_of(found, "out") is None  # the program's result is unused


@pytest.mark.parametrize(("steps", "line"), [(FURTHEST - 1, 9), (FURTHEST + 1, None)])
def test_the_search_is_bounded(steps: int, line: int | None) -> None:
    copies = "\n".join(f"%c{i} = f32[8]{{0}} copy(%{'a' if i == 0 else f'c{i - 1}'})" for i in range(steps + 1))
    found = entry(f"%a = f32[8]{{0}} parameter(0)\n{copies}\nROOT %made = f32[8]{{0}} negate(%c{steps}), {META}")
    assert line_of(found, "c0") == line


@pytest.mark.parametrize(
    ("name", "path", "phase", "primitive"),
    [
        ("jit(f)/add", (), "forward", "add"),
        ("jit(f)/jvp(experts)/ecd,edf->ecf/dot_general", ("experts", "ecd,edf->ecf"), "forward", "dot_general"),
        ("jit(f)/transpose(jvp(experts))/mul", ("experts",), "backward", "mul"),
        ("jit(f)/jit(main)/jvp(Net)/layer_0/dot_general", ("Net", "layer_0"), "forward", "dot_general"),
        ("jit(f)/transpose(jvp(jit(attn)))/while/body/closed_call/mul", ("attn",), "backward", "mul"),
        ("jit(f)/jvp()/while/body/eval_jaxpr/mlp/dot_general", ("mlp",), "forward", "dot_general"),
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
    found = scope_of(name)
    assert (found.path, found.phase, found.primitive) == (path, phase, primitive)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("jit(f)/jvp(Net)/Block_12/Dense_0/dot_general", "Net/Block_*/Dense_*"),
        ("jit(f)/transpose(jvp(layers[3]))/while/body/closed_call/checkpoint/mlp/mul", "layers[*]/mlp"),
        ("jit(f)/jvp(experts)/ecd,edf->ecf/dot_general", "experts"),
        ("jit(f)/jvp(attention)/jit(_where)/select_n", "attention"),
        ("jit(f)/jvp(jit(layer))/mlp/jit(log_softmax)/exp", "layer/mlp"),
        ("jit(f)/jvp(jit(log_softmax))/exp", ""),
        ("jit(f)/jvp()/add", ""),
        ("jit(f)/head2d/add", "head2d"),
        ("jit(f)/jvp(Net)/AttentionOp_0.qk_product/dot_general", "Net/AttentionOp_*.qk_product"),
    ],
)
def test_the_module_is_that_of_named_scopes(name: str, module: str) -> None:
    assert scope_of(name).module == module


def test_a_combined_collective_has_every_origin_once() -> None:
    found = scopes_of("jit(f)/(jvp(mlp)/reduce_sum:transpose(jvp(mlp))/dot_general:transpose(jvp(mlp))/dot_general)")
    assert [(one.label, one.phase) for one in found] == [("mlp/reduce_sum", "forward"), ("mlp/dot_general", "backward")]
    equal = scopes_of("jit(f)/jvp(mlp)/add;jit(f)/transpose(jvp(mlp))/add_any")
    assert [(one.label, one.phase) for one in equal] == [("mlp/add", "forward"), ("mlp/add_any", "backward")]


def test_hostile_nesting_and_open_brackets_end() -> None:
    deep = "jit(" * 50_000 + "x" + ")" * 50_000
    assert scope_of(f"jit(f)/{deep}/add").primitive == "add"
    assert scope_of(")))((a/b:c").phase == "forward"


@pytest.mark.parametrize(
    "path",
    [
        "/opt/venv/lib/python3.12/site-packages/jax/_src/pjit.py",
        "/usr/lib/python3/dist-packages/numpy/core.py",
        "/usr/lib/python3.11/contextlib.py",
        "/opt/jax/jax/_src/api.py",
        "/opt/flax/flax/linen/module.py",
        "/opt/flax/flax/nnx/nn/linear.py",
        "/opt/optax/optax/_src/base.py",
        "<frozen runpy>",
        "C:\\env\\Lib\\site-packages\\jax\\_src\\api.py",
    ],
)
def test_libraries(path: str) -> None:
    assert is_library(path)


@pytest.mark.parametrize(
    "path",
    [
        "/home/me/train.py",
        "/home/me/jax/train.py",
        "/home/me/projects/flax/model.py",
        "train.py",
        "/data/torch/nn.py.txt",
    ],
)
def test_the_users_own_files(path: str) -> None:
    assert not is_library(path)


def test_the_innermost_user_frame_wins_and_a_circle_ends() -> None:
    table = FrameTable(
        files={1: "train.py", 2: "/x/site-packages/a.py"},
        locations={1: (1, 5), 2: (2, 6), 3: (1, 7), 4: (9, 1)},
        frames={1: (1, 0), 2: (3, 1), 3: (2, 2), 4: (2, 5), 5: (2, 4), 6: (4, 1), 7: (2, 0)},
    )
    assert table.user_line(3) == ("train.py", 7)
    assert table.user_line(6) == ("train.py", 5)  # its own location names no file
    assert table.user_line(4) == ("/x/site-packages/a.py", 6)  # a circle of library frames
    assert table.user_line(7) == ("/x/site-packages/a.py", 6)  # nothing better is known
    assert table.user_line(0) is None
