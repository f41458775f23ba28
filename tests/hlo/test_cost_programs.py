"""Programs whose cost is counted by hand; every count has its derivation."""

from __future__ import annotations

import pytest

from perfscope.analyzers.hlo.cost.types import Cost
from tests.hlo.modules import ADD_COMPUTATION, cost, op_cost


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
    # the operand is not a buffer: 100 minus the 4 replaced are read, all are written
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
    found = fusion(["f32[50000,64]", "s32[5,1]", "f32[5,64]"], "f32[50000,64]", body, ADD_COMPUTATION)
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


def test_dot():
    # 8 x 4 results, 16 multiply-adds each: 8*4*16*2; reads (8*16 + 16*4)*4 B, writes 8*4*4 B
    row = op_cost(
        ["f32[8,16]", "f32[16,4]"],
        "f32[8,4] dot(%p0, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    )
    assert row.flops == 1024
    assert (row.once.bytes_read, row.once.bytes_written) == (768, 128)


def test_batched_dot():
    # three products of 8 x 5 results with two contracted dimensions of 4 and 2: 3 * 8*5 * 4*2 * 2
    row = op_cost(
        ["bf16[3,8,4,2]", "bf16[3,4,2,5]"],
        "f32[3,8,5] dot(%p0, %p1), lhs_batch_dims={0}, lhs_contracting_dims={2,3}, "
        "rhs_batch_dims={0}, rhs_contracting_dims={1,2}",
    )
    assert row.flops == 3 * 8 * 5 * 8 * 2
    assert {(kind.dtype, kind.precision): flops for kind, flops in row.once.products.items()} == {
        ("bf16", "default"): 1920
    }
    assert row.once.bytes == (3 * 8 * 8 + 3 * 8 * 5) * 2 + 3 * 8 * 5 * 4


def test_convolution():
    # 2 images, 8x8 outputs of 8 features, each over 3x3 positions of 3 input features
    row = op_cost(
        ["f32[2,10,10,3]", "f32[3,3,3,8]"],
        "f32[2,8,8,8] convolution(%p0, %p1), window={size=3x3}, dim_labels=b01f_01io->b01f",
    )
    assert row.flops == 2 * (2 * 8 * 8 * 8) * (3 * 3 * 3)


def test_convolution_with_groups_and_padding():
    # stride 2 over 10 with one of padding on each side: outputs 0..4 begin at -1, 1, 3, 5, 7. Of 5*3 positions a
    # dimension only one is padding (the first of the first output): 14*14 a plane; 2 of 4 input features a group.
    row = op_cost(
        ["f32[2,10,10,4]", "f32[3,3,2,8]"],
        "f32[2,5,5,8] convolution(%p0, %p1), window={size=3x3 stride=2x2 pad=1_1x1_1}, "
        "dim_labels=b01f_01io->b01f, feature_group_count=2",
    )
    assert row.flops == 2 * 2 * 8 * 2 * 14 * 14


def test_convolution_that_is_a_batched_dot_on_tpu():
    # batch of 8 as a window of 8 over an input of 8 with holes of 7 between: each output meets one input, so it is
    # 8 products of (16 x 32) x (32 x 64)
    row = op_cost(
        ["bf16[8,16,32]", "bf16[8,32,64]"],
        "bf16[8,16,64] convolution(%p0, %p1), window={size=8 stride=7 lhs_dilate=8}, dim_labels=0bf_0io->0bf",
    )
    assert row.flops == 8 * 16 * 64 * 32 * 2


def test_reduce():
    # 8 rows of 16: 15 additions each
    row = op_cost(["f32[8,16]", "f32[]"], "f32[8] reduce(%p0, %p1), dimensions={1}, to_apply=%add", ADD_COMPUTATION)
    assert row.flops == 8 * 15
    assert (row.once.bytes_read, row.once.bytes_written) == (8 * 16 * 4 + 4, 32)


def test_gather_reads_the_rows_of_an_embedding_table_that_it_yields():
    # 5 rows of 64 of a table of 50,000: 5*64*2 B and the 5 indices, not 6.4 MB
    row = op_cost(
        ["bf16[50000,64]", "s32[5,1]"],
        "bf16[5,64] gather(%p0, %p1), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, "
        "index_vector_dim=1, slice_sizes={1,64}",
    )
    assert row.flops == 0
    assert (row.once.bytes_read, row.once.bytes_written) == (5 * 64 * 2 + 5 * 4, 5 * 64 * 2)


def test_fusion_with_a_slice():
    # exp of 2 of 1,000 rows: reads the rows, computes 2*8 transcendentals and 2*8 multiplies
    found = cost(
        """
%body (p: f32[1000,8]) -> f32[2,8] {
  %p = f32[1000,8] parameter(0)
  %flat = f32[8000] bitcast(%p)
  %back = f32[1000,8] bitcast(%flat)
  %rows = f32[2,8] slice(%back), slice={[4:6], [0:8]}
  %exp = f32[2,8] exponential(%rows)
  ROOT %twice = f32[2,8] multiply(%exp, %exp)
}
ENTRY %main (x: f32[1000,8]) -> f32[2,8] {
  %x = f32[1000,8] parameter(0)
  ROOT %fusion = f32[2,8] fusion(%x), kind=kLoop, calls=%body
}
"""
    )
    assert (found.total.flops, found.total.transcendentals) == (16, 16)
    assert (found.total.bytes_read, found.total.bytes_written) == (64, 64)


LOOP = """
%body (state: (s32[], f32[100,8], f32[8])) -> (s32[], f32[100,8], f32[8]) {
  %state = (s32[], f32[100,8], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %all = f32[100,8] get-tuple-element(%state), index=1
  %x = f32[8] get-tuple-element(%state), index=2
  %row = f32[1,8] reshape(%x)
  %zero = s32[] constant(0)
  %updated = f32[100,8] dynamic-update-slice(%all, %row, %i, %zero)
  ROOT %result = (s32[], f32[100,8], f32[8]) tuple(%next, %updated, %x)
}
%condition (state: (s32[], f32[100,8], f32[8])) -> pred[] {
  %state = (s32[], f32[100,8], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %n = s32[] constant(100)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}
ENTRY %main (start: (s32[], f32[100,8], f32[8])) -> (s32[], f32[100,8], f32[8]) {
  %start = (s32[], f32[100,8], f32[8]) parameter(0)
  ROOT %loop = (s32[], f32[100,8], f32[8]) while(%start), condition=%condition, body=%bodyKNOWN
}
"""


def test_loop_that_writes_one_row_a_turn():
    found = cost(LOOP.replace("KNOWN", ', backend_config={"known_trip_count":{"n":"100"}}'))
    # a turn: the add of two s32 (8 B read, 4 written, one operation); the reshape (32, 32); the update reads its
    # row and two indices (32 + 8) and writes the row (32), not the 3,200 B around it; the condition compares two
    # s32 into a pred (8, 1, one operation)
    assert found.total.bytes_read == 100 * (8 + 32 + 40 + 8)
    assert found.total.bytes_written == 100 * (4 + 32 + 32 + 1)
    assert found.total.flops == 100 * 2
    assert found.total.exact
    assert found.by_name["body", "updated"].runs == 100


def test_loop_of_unknown_length_counts_once_and_says_so():
    found = cost(LOOP.replace("KNOWN", ""))
    assert found.total.flops == 2
    assert not found.total.exact
    assert found.by_name["main", "loop"].place == "control"
    row = found.by_name["body", "updated"]
    assert (row.runs, row.runs_exact) == (1, False)
    assert not row.total.exact
    assert found.by_name["main", "start"].runs_exact


def test_nested_loops_multiply():
    found = cost(
        """
%inner (x: f32[4]) -> f32[4] {
  %x = f32[4] parameter(0)
  ROOT %y = f32[4] add(%x, %x)
}
%test (x: f32[4]) -> pred[] {
  %x = f32[4] parameter(0)
  ROOT %go = pred[] constant(true)
}
%outer (x: f32[4]) -> f32[4] {
  %x = f32[4] parameter(0)
  %once = f32[4] multiply(%x, %x)
  ROOT %loop = f32[4] while(%once), condition=%test, body=%inner, backend_config={"known_trip_count":{"n":"5"}}
}
ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4] parameter(0)
  ROOT %loop = f32[4] while(%x), condition=%test, body=%outer, backend_config={"known_trip_count":{"n":"3"}}
}
"""
    )
    assert found.by_name["inner", "y"].runs == 15
    assert found.by_name["outer", "once"].runs == 3
    assert found.total.flops == 15 * 4 + 3 * 4
    # the condition is in both loops: 3 + 15 times
    assert found.by_name["test", "go"].runs == 18


def test_conditional_takes_the_dearest_branch_and_states_both():
    found = cost(
        """
%cheap (x: f32[8]) -> f32[8] {
  %x = f32[8] parameter(0)
  ROOT %y = f32[8] add(%x, %x)
}
%dear (x: f32[8]) -> f32[8] {
  %x = f32[8] parameter(0)
  %y = f32[8] add(%x, %x)
  ROOT %z = f32[8] multiply(%y, %x)
}
ENTRY %main (which: pred[], x: f32[8]) -> f32[8] {
  %which = pred[] parameter(0)
  %x = f32[8] parameter(1)
  ROOT %choice = f32[8] conditional(%which, %x, %x), true_computation=%cheap, false_computation=%dear
}
"""
    )
    choice = found.by_name["main", "choice"]
    assert [branch.flops for branch in choice.branches] == [8, 16]
    assert found.total.flops == 16
    assert found.by_name["cheap", "y"].runs == 0
    assert found.by_name["dear", "z"].runs == 1


def test_all_reduce():
    # 1,024 floats over 4 devices: a ring sends 2 * 3/4 of 4,096 B; read and written once, one addition an element
    row = op_cost(
        ["f32[1024]"], "f32[1024] all-reduce(%p0), replica_groups={{0,1,2,3}}, to_apply=%add", ADD_COMPUTATION
    )
    assert row.once.wire_bytes == 6144
    assert (row.once.bytes_read, row.once.bytes_written) == (4096, 4096)
    assert row.flops == 1024


def test_one_step_of_naive_attention():
    # 2 heads, 16 queries and keys of size 8. scores and output: 2*2*16*16*8 each. softmax of 512 scores: max 15 of
    # 16 a row, subtract, exp, sum 15 of 16 a row, divide.
    text = """
%max (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %larger = f32[] maximum(%a, %b)
}
ENTRY %main (q: f32[2,16,8], k: f32[2,16,8], v: f32[2,16,8]) -> f32[2,16,8] {
  %q = f32[2,16,8] parameter(0)
  %k = f32[2,16,8] parameter(1)
  %v = f32[2,16,8] parameter(2)
  %low = f32[] constant(-inf)
  %zero = f32[] constant(0)
  %scores = f32[2,16,16] dot(%q, %k), BATCH, lhs_contracting_dims={2}, rhs_contracting_dims={2}
  %top = f32[2,16] reduce(%scores, %low), dimensions={2}, to_apply=%max
  %tops = f32[2,16,16] broadcast(%top), dimensions={0,1}
  %less = f32[2,16,16] subtract(%scores, %tops)
  %exp = f32[2,16,16] exponential(%less)
  %sum = f32[2,16] reduce(%exp, %zero), dimensions={2}, to_apply=%add
  %sums = f32[2,16,16] broadcast(%sum), dimensions={0,1}
  %weights = f32[2,16,16] divide(%exp, %sums)
  ROOT %out = f32[2,16,8] dot(%weights, %v), BATCH, lhs_contracting_dims={2}, rhs_contracting_dims={1}
}
"""
    found = cost(ADD_COMPUTATION + text.replace("BATCH", "lhs_batch_dims={0}, rhs_batch_dims={0}"))
    each = 2 * 2 * 16 * 16 * 8
    assert sum(found.total.products.values()) == 2 * each
    assert found.total.flops == 2 * each + 2 * (2 * 16 * 15) + 512 + 512
    assert found.total.transcendentals == 512
    # scores, less, exp and weights go out and come back: each is 2,048 B
    assert found.by_name["main", "less"].once.bytes == 3 * 2048


def test_what_runs_by_itself_adds_up_to_the_total():
    found = cost(LOOP.replace("KNOWN", ', backend_config={"known_trip_count":{"n":"100"}}'))
    assert sum(row.total.flops for row in found.launched) == found.total.flops
    assert sum(row.total.bytes for row in found.launched) == found.total.bytes
    assert sum(part.flops for part in found.phases.values()) == found.total.flops


def test_phases_follow_the_path_of_each_op_inside_a_fusion():
    found = cost(
        """
%body (x: f32[8]) -> f32[8] {
  %x = f32[8] parameter(0)
  %again = f32[8] add(%x, %x), metadata={op_name="jit(f)/transpose(jvp())/checkpoint/rematted_computation/add"}
  %back = f32[8] multiply(%again, %x), metadata={op_name="jit(f)/transpose(jvp())/mul"}
  ROOT %more = f32[8] multiply(%back, %x), metadata={op_name="jit(f)/transpose(jvp())/mul"}
}
ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8] parameter(0)
  %first = f32[8] add(%x, %x), metadata={op_name="jit(f)/jvp()/add"}
  %copied = f32[8] copy(%first)
  ROOT %fusion = f32[8] fusion(%copied), kind=kLoop, calls=%body, metadata={op_name="jit(f)/transpose(jvp())/mul"}
}
"""
    )
    assert {phase: part.flops for phase, part in found.phases.items()} == {
        "forward": 8, "backward": 16, "recompute": 8, "unnamed": 0,
    }  # fmt: skip
    assert found.recompute_share() == pytest.approx(8 / 32)
    assert found.phases["backward"].bytes == 64
    assert found.phases["unnamed"].bytes == 64


def test_unknown_arithmetic_is_none_and_its_share_of_the_traffic_is_said():
    found = cost(
        """
ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8] parameter(0)
  %call = f32[8] custom-call(%x), custom_call_target="my_kernel"
  ROOT %y = f32[8] add(%call, %call)
}
"""
    )
    row = found.by_name["main", "call"]
    assert row.flops is None
    assert row.once.bytes == 64
    assert (found.total.unknown, found.total.exact, found.total.flops) == (1, False, 8)


def test_unknown_arithmetic_inside_a_fusion_leaves_a_lower_bound():
    found = cost(
        """
%body (x: f32[8]) -> f32[8] {
  %x = f32[8] parameter(0)
  %odd = f32[8] future-op(%x)
  ROOT %y = f32[8] add(%odd, %x)
}
ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8] parameter(0)
  ROOT %fusion = f32[8] fusion(%x), kind=kLoop, calls=%body
}
"""
    )
    row = found.by_name["main", "fusion"]
    assert row.flops == 8
    assert not row.once.exact
    assert found.by_name["body", "odd"].flops is None
