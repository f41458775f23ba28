"""Keys of two traces are paired by the first level that finds a partner, and each is in one match."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.compare.align import align, same_files
from perfscope.analyzers.compare.kernel_names import without_counters, without_numbers, without_tiles, work_class
from perfscope.analyzers.compare.keys import Key, Level


def key(op: str = "aten::mm", line: int = 10, **more: str) -> Key:
    held = {"file": "train.py", "function": "loss", "work": "gemm", "shapes": "[[4]]"} | more
    return Key(kind="compute", op=op, line=line, **held)


KEYS = st.builds(
    key,
    op=st.sampled_from(["aten::mm", "aten::add", ""]),
    line=st.integers(1, 6),
    work=st.sampled_from(["gemm_1", "gemm_2", "triton_poi_fused_add_0", "x"]),
    shapes=st.sampled_from(["[[4]]", "[[8]]"]),
    file=st.sampled_from(["train.py", "a/model.py", "b/model.py"]),
)


@given(st.sets(KEYS, max_size=12), st.sets(KEYS, max_size=12))
def test_every_key_is_in_exactly_one_match(base: set[Key], head: set[Key]) -> None:
    matches = align(base, head)
    assert sorted(map(repr, (one for match in matches for one in match.base))) == sorted(map(repr, base))
    assert sorted(map(repr, (one for match in matches for one in match.head))) == sorted(map(repr, head))
    assert all((match.level is None) == (not match.base or not match.head) for match in matches)


@given(st.sets(KEYS, max_size=12))
def test_a_trace_against_itself_matches_exactly(keys: set[Key]) -> None:
    assert all(match.level is Level.SAME and match.base == match.head for match in align(keys, keys))


@pytest.mark.parametrize(
    ("base", "head", "level"),
    [
        (key(), key(), Level.SAME),
        (key(work="triton_poi_fused_add_3"), key(work="triton_poi_fused_add_7"), Level.RENAMED),
        (key(op="graph_cpp_fused_mul_1"), key(op="graph_cpp_fused_mul_2"), Level.RENAMED),
        (key(work="void k<float, 4>(int)"), key(work="void k<float, 8>(long)"), Level.RENAMED),
        (key(line=10), key(line=40), Level.SAME),
        (key(work="ampere_sgemm"), key(work="cutlass_80_gemm"), Level.OTHER_KERNEL),
        (key(shapes="[[4]]"), key(shapes="[[8]]"), Level.OTHER_SHAPES),
        (key(file="a.py"), key(file="b.py"), Level.SAME_OP),
        (key(op="aten::add", work="add"), key(op="triton_poi_fused_add", work="triton_poi_fused_add"), Level.FUSED),
        (key(op="aten::mm", file="a.py"), key(op="aten::addmm", file="b.py"), Level.SAME_CLASS),
        (key(op="aten::mm", file="a.py"), key(op="aten::sort", file="b.py", work="sort"), None),
    ],
)  # fmt: skip
def test_level(base: Key, head: Key, level: Level | None) -> None:
    assert {match.level for match in align([base], [head])} == {level}


def test_lines_that_moved_keep_their_partners_and_the_inserted_one_is_new() -> None:
    base = [key("aten::sort", 5), key(line=10), key(line=11), key(line=12)]
    head = [key("aten::sort", 6), key(line=11), key(line=12), key(line=13), key("aten::item", 14, work="item")]
    matches = align(base, head)
    assert {(m.base[0].line, m.head[0].line) for m in matches if m.base and m.head} == {
        (5, 6), (10, 11), (11, 12), (12, 13),
    }  # fmt: skip
    assert [m.head[0].op for m in matches if not m.base] == ["aten::item"]


def test_several_kernels_against_a_fused_one_are_one_match() -> None:
    base = [key(f"aten::{name}", 41, work=f"{name}_kernel") for name in ("add", "mul", "silu")]
    (match,) = align(base, [key("CompiledFunction", 41, work="triton_poi_fused_add_mul_silu_0")])
    assert (len(match.base), len(match.head), match.level) == (3, 1, Level.FUSED)


def test_idle_time_of_another_cause_is_another_part() -> None:
    base = Key(kind="idle", work="idle: the host launched late", op="aten::mm")
    head = Key(kind="idle", work="idle: the host waited for the device", op="aten::mm")
    assert all(match.level is None for match in align([base], [head]))


def test_files_of_another_checkout() -> None:
    base, head = {"/a/src/m.py", "/a/test/m.py", "n.py"}, {"/b/src/m.py", "/b/test/m.py", "n.py"}
    assert same_files(base, head) == {"/a/src/m.py": "/b/src/m.py", "/a/test/m.py": "/b/test/m.py"}
    assert same_files({"/a/m.py"}, {"/b/m.py", "/c/m.py"}) == {}


def test_names_without_what_changes_from_build_to_build() -> None:
    assert without_numbers("triton_poi_fused_add_relu_12") == "triton_poi_fused_add_relu"
    assert without_numbers("loop_add_fusion.3.remat2") == "loop_add_fusion"
    assert without_numbers("k_0f3a9c1e22") == without_numbers("k_99aa8b7c6d")
    assert without_numbers("void at::native::elementwise<4, Add<float>>(int, Add)") == "at::native::elementwise"
    assert without_tiles("ampere_sgemm_128x64_tn") == without_tiles("ampere_sgemm_64x32_tn")
    assert without_numbers("deadbeef") == "deadbeef"
    graphs = [f"## Call CompiledFxGraph f{letter * 25}2{letter * 25} ##" for letter in "ab"]
    assert len(set(map(without_counters, graphs))) == 1
    assert without_counters("PjitFunction(step)") == "PjitFunction(step)"
    assert without_counters("an_ordinary_word_of_more_than_forty_letters_in_all") == (
        "an_ordinary_word_of_more_than_forty_letters_in_all"
    )


def test_classes_of_work() -> None:
    assert work_class("void flash::flash_fwd_kernel<F>") == "attention"
    assert work_class("Cijk_Ailk_Bljk_SB_MT64x64") == "matrix product"
    assert work_class("ncclDevKernel_AllReduce") == "collective"
    assert work_class("zzz") == "other"
