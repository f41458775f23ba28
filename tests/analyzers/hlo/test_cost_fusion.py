"""What fusions read and write: slices, gathers and in-place updates right through what stands between."""

from __future__ import annotations

from perfscope.analyzers.hlo.cost_types import Cost
from tests.analyzers.hlo.cost_text import ADD, cost


def fusion(parameters: list[str], result: str, body: str, computations: str = "") -> Cost:
    """Cost of one fusion whose body is given; ``%p0`` ... are its parameters."""
    inner = "\n".join(f"  %p{at} = {shape} parameter({at})" for at, shape in enumerate(parameters))
    named = ", ".join(f"p{at}: {shape}" for at, shape in enumerate(parameters))
    passed = ", ".join(f"%p{at}" for at in range(len(parameters)))
    text = (
        f"{computations}\n%body ({named}) -> {result} {{\n{inner}\n{body}\n}}\n"
        f"ENTRY %main ({named}) -> {result} {{\n{inner}\n  ROOT %r = {result} fusion({passed}), kind=kLoop, "
        "calls=%body\n}\n"
    )
    return cost(text).by_name["main", "r"].once


def test_a_whole_operand():
    found = fusion(["f32[100,8]"], "f32[100,8]", "  ROOT %y = f32[100,8] add(%p0, %p0)")
    assert (found.bytes_read, found.bytes_written) == (3200, 3200)


def test_a_slice_of_what_is_computed_from_an_operand():
    body = """
  %half = f16[100,8] convert(%p0)
  %moved = f16[8,100] transpose(%half), dimensions={1,0}
  ROOT %part = f16[8,5] dynamic-slice(%moved, %p1, %p1), dynamic_slice_sizes={8,5}"""
    found = fusion(["f32[100,8]", "s32[]"], "f16[8,5]", body)
    assert found.bytes_read == 8 * 5 * 4 + 4


def test_two_slices_are_two_reads_and_the_same_slice_twice_is_one():
    two = """
  %a = f32[5,8] slice(%p0), slice={[0:5], [0:8]}
  %b = f32[5,8] slice(%p0), slice={[5:10], [0:8]}
  ROOT %y = f32[5,8] add(%a, %b)"""
    assert fusion(["f32[100,8]"], "f32[5,8]", two).bytes_read == 2 * 160
    assert fusion(["f32[100,8]"], "f32[5,8]", two.replace("[5:10]", "[0:5]")).bytes_read == 160


def test_a_slice_beside_a_use_of_all_is_all():
    body = """
  %a = f32[5,8] slice(%p0), slice={[0:5], [0:8]}
  %wide = f32[100,8] pad(%a, %p1), padding=0_95x0_0
  ROOT %y = f32[100,8] add(%wide, %p0)"""
    assert fusion(["f32[100,8]", "f32[]"], "f32[100,8]", body).bytes_read == 3200 + 4


def test_update_in_place_through_bitcasts_on_both_sides():
    body = """
  %flat = f32[800] bitcast(%p0)
  %new = f32[8] exponential(%p1)
  %put = f32[800] dynamic-update-slice(%flat, %new, %p2)
  ROOT %y = f32[100,8] bitcast(%put)"""
    found = fusion(["f32[100,8]", "f32[8]", "s32[]"], "f32[100,8]", body)
    assert (found.bytes_read, found.bytes_written) == (32 + 4, 32)


def test_update_of_a_buffer_that_is_read_in_part_first():
    # out[i] += x: reads the old row, writes the new one
    body = """
  %old = f32[1,8] dynamic-slice(%p0, %p2, %p3), dynamic_slice_sizes={1,8}
  %new = f32[1,8] add(%old, %p1)
  ROOT %y = f32[100,8] dynamic-update-slice(%p0, %new, %p2, %p3)"""
    found = fusion(["f32[100,8]", "f32[1,8]", "s32[]", "s32[]"], "f32[100,8]", body)
    assert (found.bytes_read, found.bytes_written) == (32 + 32 + 8, 32)


def test_updates_in_a_tuple_and_one_after_another():
    body = """
  %a = f32[100] dynamic-update-slice(%p0, %p1, %p2)
  %b = f32[100] dynamic-update-slice(%a, %p1, %p3)
  %other = f32[4] negate(%p1)
  ROOT %both = (f32[100], f32[4]) tuple(%b, %other)"""
    found = fusion(["f32[100]", "f32[4]", "s32[]", "s32[]"], "(f32[100], f32[4])", body)
    assert found.bytes_written == 2 * 16 + 16
    assert found.bytes_read == 16 + 8


def test_an_update_of_something_computed_writes_everything():
    # the operand is no buffer: 100 minus the 4 replaced are read, all are written
    body = """
  %fresh = f32[100] negate(%p0)
  ROOT %y = f32[100] dynamic-update-slice(%fresh, %p1, %p2)"""
    found = fusion(["f32[100]", "f32[4]", "s32[]"], "f32[100]", body)
    assert (found.bytes_read, found.bytes_written) == (96 * 4 + 16 + 4, 400)


def test_an_update_that_is_used_further_is_not_in_place():
    body = """
  %put = f32[100] dynamic-update-slice(%p0, %p1, %p2)
  ROOT %y = f32[100] negate(%put)"""
    found = fusion(["f32[100]", "f32[4]", "s32[]"], "f32[100]", body)
    assert found.bytes_written == 400


def test_a_copy_before_the_update_is_a_copy():
    body = """
  %own = f32[100] copy(%p0)
  ROOT %y = f32[100] dynamic-update-slice(%own, %p1, %p2)"""
    assert fusion(["f32[100]", "f32[4]", "s32[]"], "f32[100]", body).bytes_written == 400


def test_gather_and_scatter_touch_their_rows():
    body = """
  %half = bf16[50000,64] convert(%p0)
  ROOT %rows = bf16[5,64] gather(%half, %p1), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, \
index_vector_dim=1, slice_sizes={1,64}"""
    found = fusion(["f32[50000,64]", "s32[5,1]"], "bf16[5,64]", body)
    assert found.bytes_read == 5 * 64 * 4 + 20
    body = """
  ROOT %sum = f32[50000,64] scatter(%p0, %p1, %p2), update_window_dims={1}, inserted_window_dims={0}, \
scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=%add"""
    found = fusion(["f32[50000,64]", "s32[5,1]", "f32[5,64]"], "f32[50000,64]", body, ADD)
    # the rows that are there, the rows that come, the indices; the rows go back
    assert (found.bytes_read, found.bytes_written) == (2 * 1280 + 20, 1280)


def test_a_fusion_inside_a_fusion_demands_what_its_body_does():
    inner = """
%inner (x: f32[100,8]) -> f32[5,8] {
  %x = f32[100,8] parameter(0)
  ROOT %part = f32[5,8] slice(%x), slice={[0:5], [0:8]}
}
"""
    body = """
  %part = f32[5,8] fusion(%p0), kind=kLoop, calls=%inner
  ROOT %y = f32[5,8] negate(%part)"""
    found = fusion(["f32[100,8]"], "f32[5,8]", body, inner)
    assert (found.bytes_read, found.flops) == (160, 40)


def test_tuples_and_elements_of_parameters():
    body = """
  %a = f32[10] get-tuple-element(%p0), index=0
  %b = f32[100] get-tuple-element(%p0), index=1
  %part = f32[10] slice(%b), slice={[0:10]}
  ROOT %y = f32[10] add(%a, %part)"""
    assert fusion(["(f32[10], f32[100])"], "f32[10]", body).bytes_read == 80


def test_elements_of_a_tuple_in_a_tuple():
    body = """
  %pair = (f32[10], f32[100]) get-tuple-element(%p0), index=1
  %b = f32[100] get-tuple-element(%pair), index=1
  ROOT %part = f32[10] slice(%b), slice={[0:10]}"""
    assert fusion(["(f32[7], (f32[10], f32[100]), f32[3])"], "f32[10]", body).bytes_read == 40


def test_what_stays_in_fast_memory_on_tpu_is_no_traffic():
    layout = "{0:T(1024)}"
    found = cost(
        f"""
ENTRY %main (x: f32[4096]) -> f32[4096] {{
  %x = f32[4096]{layout} parameter(0)
  %near = f32[4096]{{0:T(1024)S(1)}} negate(%x)
  ROOT %y = f32[4096]{layout} negate(%near)
}}
"""
    )
    assert found.module.platform == "tpu"
    near, far = found.by_name["main", "near"].once, found.by_name["main", "y"].once
    assert (near.bytes_read, near.bytes_written) == (16384, 0)
    assert (far.bytes_read, far.bytes_written) == (0, 16384)
