"""Programs whose cost is counted by hand; every count is derived beside it."""

from __future__ import annotations

import pytest

from tests.analyzers.hlo.cost_text import ADD, cost, op_cost


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
    row = op_cost(["f32[8,16]", "f32[]"], "f32[8] reduce(%p0, %p1), dimensions={1}, to_apply=%add", ADD)
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
    row = op_cost(["f32[1024]"], "f32[1024] all-reduce(%p0), replica_groups={{0,1,2,3}}, to_apply=%add", ADD)
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
    found = cost(ADD + text.replace("BATCH", "lhs_batch_dims={0}, rhs_batch_dims={0}"))
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
    assert found.unknown_bytes_share == pytest.approx(64 / (64 + 64))


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
