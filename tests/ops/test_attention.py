"""Dataflow around a softmax: what is attention, and which ops are its scores'."""

from __future__ import annotations

import pytest

from perfscope.analyzers.graph import short_name
from perfscope.analyzers.graph.attention import RowMaxima
from perfscope.analyzers.graph.from_hlo import HloProgram
from perfscope.analyzers.hlo.cost.module import module_cost
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.ops.attention import find_attentions
from perfscope.analyzers.programs.attention_traffic import written_attention
from tests.graphs import GraphBuilder
from tests.hlo_build import GPU, hlo_module, hlo_trace
from tests.ops.attention_programs import ENTRY, LOOP, VALUE_PRODUCT, attention_program

SCORES = (8, 64, 64)


def scores_of(g: GraphBuilder) -> tuple[int, int]:
    q, v = g.input((8, 64, 16)), g.input((8, 64, 16))
    return g.op("bmm", [q, q], shape=SCORES, sequence=1), v


def test_bytes_are_those_of_the_score_ops_and_not_of_the_matmuls():
    g = GraphBuilder()
    s, v = scores_of(g)
    s = g.op("_softmax", [g.op("mul", [s], sequence=2)], sequence=3)
    g.op("bmm", [s, v], shape=(8, 64, 16), sequence=4)
    (found,) = find_attentions(g.graph())
    assert found.bytes == 4 * (8 * 64 * 64 * 4)
    assert found.matmuls == (0, 3)
    assert not found.by_sdpa


def test_casts_and_masks_are_followed_and_the_other_branch_is_not():
    g = GraphBuilder()
    s, v = scores_of(g)
    mask = g.input((64, 64), "bool")
    s = g.op("masked_fill", [s, mask])
    s = g.op("_softmax", [g.op("_to_copy", [s], dtype="float32")])
    g.op("mean", [s], shape=(8, 64, 1))  # an entropy that is logged
    g.op("bmm", [g.op("_to_copy", [s], dtype="float32"), v], shape=(8, 64, 16))
    (found,) = find_attentions(g.graph())
    assert [short_name(g.ops[i]) for i in found.ops] == ["masked_fill", "_to_copy", "_softmax", "_to_copy"]


def test_a_classifier_a_router_and_scores_that_are_only_read_are_not_attention():
    classifier = GraphBuilder()
    x, w = classifier.input((64, 64)), classifier.input((64, 64), parameter=True)
    classifier.op("_softmax", [classifier.op("mm", [x, w], shape=(64, 64))])
    assert find_attentions(classifier.graph()) == ()
    router = GraphBuilder()
    s, v = scores_of(router)
    top = router.op("topk", [router.op("_softmax", [s])], shape=(8, 64, 2))
    router.op("bmm", [top, v], shape=(8, 64, 16))
    assert find_attentions(router.graph()) == ()


def test_the_backward_is_joined_by_the_values_it_reads():
    g = GraphBuilder()
    s, v = scores_of(g)
    p = g.op("_softmax", [s], sequence=3)
    y = g.op("bmm", [p, v], shape=(8, 64, 16), sequence=4)
    grad = g.op("bmm", [y, v], shape=SCORES, phase="backward", sequence=4)
    g.op("_softmax_backward_data", [grad, p], phase="backward", sequence=3)
    other = g.op("bmm", [y, v], shape=SCORES, phase="backward", sequence=4)
    g.op("_softmax_backward_data", [other, g.input(SCORES)], phase="backward", sequence=3)
    (found,) = find_attentions(g.graph())
    assert found.ops == (1, 4)


NAMES = """
    %pair (p: f32[4], r: f32[4]) -> (f32[4], f32[4]) {
      %p = f32[4] parameter(0)
      %r = f32[4] parameter(1)
      %n = f32[4] negate(%r)
      ROOT %t = (f32[4], f32[4]) tuple(%p, %n)
    }
    %yes (y: f32[4]) -> f32[4] {
      %y = f32[4] parameter(0)
      ROOT %ey = f32[4] exponential(%y)
    }
    %no (z: f32[4]) -> f32[4] {
      ROOT %z = f32[4] parameter(0)
    }
    %body (c: (f32[4], f32[4])) -> (f32[4], f32[4]) {
      %c = (f32[4], f32[4]) parameter(0)
      %kept = f32[4] get-tuple-element(%c), index=0
      %state = f32[4] get-tuple-element(%c), index=1
      %more = f32[4] add(%state, %kept)
      ROOT %b = (f32[4], f32[4]) tuple(%kept, %more)
    }
    %cond (c: (f32[4], f32[4])) -> pred[] {
      %cc = (f32[4], f32[4]) parameter(0)
      ROOT %true = pred[] constant(true)
    }
    ENTRY %main (a: f32[4], d: f32[4], which: pred[]) -> f32[4] {
      %a = f32[4] parameter(0)
      %d = f32[4] parameter(1)
      %which = pred[] parameter(2)
      %f = (f32[4], f32[4]) fusion(%a, %d), kind=kLoop, calls=%pair
      %first = f32[4] get-tuple-element(%f), index=0
      %second = f32[4] get-tuple-element(%f), index=1
      %chosen = f32[4] conditional(%which, %a, %d), true_computation=%yes, false_computation=%no
      %init = (f32[4], f32[4]) tuple(%first, %second)
      %w = (f32[4], f32[4]) while(%init), condition=%cond, body=%body
      %same = f32[4] get-tuple-element(%w), index=0
      %last = f32[4] get-tuple-element(%w), index=1
      ROOT %sum = f32[4] add(%last, %chosen)
    }
"""


@pytest.mark.parametrize(
    ("value", "behind"),
    [
        (("main", "first"), {"a"}),
        (("main", "second"), {"n"}),
        (("main", "chosen"), {"ey", "d"}),
        (("yes", "y"), {"a"}),
        (("body", "kept"), {"a"}),
        (("main", "same"), {"a"}),
        (("main", "last"), {"n", "more"}),
        (("body", "state"), {"state"}),  # changes: no later value is the value of every iteration
    ],
)
def test_values_are_found_behind_their_names(value: tuple[str, str], behind: set[str]) -> None:
    program = HloProgram(hlo_module(NAMES))
    assert {program.nodes[number].instruction.name for number in program.back([program.numbers[value]])} == behind
    assert program.nodes[program.numbers[value]].carried == (value[1] == "state")


def _products(module: HloModule) -> dict[str, tuple[int, int]]:
    nodes = HloProgram(module, module_cost(module)).nodes
    return {node.instruction.name: (node.product.batch, node.product.summed) for node in nodes if node.product}


def test_products_by_batch_and_summed_size() -> None:
    assert _products(attention_program(heads=3, length=40, width=8)) == {"s": (3, 8), "o": (3, 40)}


def test_a_convolution_that_is_a_product() -> None:
    """As XLA for TPU writes a product of 6 batches: [6, 20, 8] x [6, 8, 10]."""
    text = f"""
        ENTRY %main (a: f32[6,20,8], b: f32[6,8,10]) -> f32[6,20,10] {{
          %a = f32[6,20,8] parameter(0)
          %b = f32[6,8,10] parameter(1)
          ROOT %c = f32[6,20,10] convolution(%a, %b), WINDOW, dim_labels=0bf_0io->0bf, {GPU}
        }}
    """
    window = "window={size=6 stride=5 pad=0_0 lhs_dilate=6}"
    assert _products(hlo_module(text.replace("WINDOW", window))) == {"c": (6, 8)}


SPLIT = """%halves = f32[8,256,2,128] bitcast(%p)
      %values = f32[8,2,128,64] bitcast(%v)
      %parts = f32[8,2,256,64] dot(%halves, %values), lhs_batch_dims={0,2}, rhs_batch_dims={0,1}, \
lhs_contracting_dims={3}, rhs_contracting_dims={2}
      %none = f32[] constant(0)
      %o = f32[QUERIES] reduce(%parts, %none), dimensions={1}, to_apply=%add"""
PART = """%some = f32[8,256,128] slice(%p), slice={[0:8], [0:256], [0:128]}
      %values = f32[8,128,64] slice(%v), slice={[0:8], [0:128], [0:64]}
      %o = f32[QUERIES] dot(%some, %values), lhs_batch_dims={0}, rhs_batch_dims={0}, \
lhs_contracting_dims={2}, rhs_contracting_dims={1}"""


def test_a_sum_that_is_split_into_more_products_is_one_over_the_row() -> None:
    """As XLA for GPUs splits a long sum: 8 products over 256 keys become 16 over 128, which are added."""
    (found,) = hlo_trace(attention_program((VALUE_PRODUCT, SPLIT))).fact(written_attention)
    assert (found.score.instruction.name, found.shape.dims) == ("s", (8, 256, 256))
    assert hlo_trace(attention_program((VALUE_PRODUCT, PART))).fact(written_attention) == (), "half of the row only"


def test_values_in_loops_count_as_often_as_they_run() -> None:
    once, looped = (hlo_trace(attention_program(entry=entry)).fact(written_attention) for entry in (ENTRY, LOOP))
    assert [found.bytes for found in looped] == [6 * found.bytes for found in once]
    assert [use.instruction.name for use in once[0].uses] == ["s", "p", "o"]


def test_scores_kept_in_a_stack_and_read_by_another_loop() -> None:
    """A slice of f32[6,8,256,256] is written by every iteration; a second loop reads them one by one."""
    stack = "f32[6,8,256,256]"
    keep = f"%whole = {stack} get-tuple-element(%c), index=5\n%row = f32[1,8,256,256] bitcast(%p)\n"
    keep += "%z = s32[] constant(0)\n"
    keep += f"%kept = {stack} dynamic-update-slice(%whole, %row, %i, %z, %z, %z)\n"
    second = f"""
    %body2 (e: (s32[], f32[SCORES], {stack})) -> (s32[], f32[SCORES], {stack}) {{
      %e = (s32[], f32[SCORES], {stack}) parameter(0)
      %j = s32[] get-tuple-element(%e), index=0
      %all = {stack} get-tuple-element(%e), index=2
      %z2 = s32[] constant(0)
      %slice = f32[1,8,256,256] dynamic-slice(%all, %j, %z2, %z2, %z2), dynamic_slice_sizes={{1,8,256,256}}
      %one2 = s32[] constant(1)
      %next2 = s32[] add(%j, %one2)
      %read = f32[SCORES] bitcast(%slice)
      %half = f32[SCORES] negate(%read)
      ROOT %u = (s32[], f32[SCORES], {stack}) tuple(%next2, %half, %all)
    }}
    %cond2 (e: (s32[], f32[SCORES], {stack})) -> pred[] {{
      %e = (s32[], f32[SCORES], {stack}) parameter(0)
      %j = s32[] get-tuple-element(%e), index=0
      %n2 = s32[] constant(6)
      ROOT %lt2 = pred[] compare(%j, %n2), direction=LT
    }}
    ENTRY"""
    module = attention_program(
        ("%one = s32[]", keep + "%one = s32[]"),
        ("%v, %new)", "%v, %new, %kept)"),
        ("STATE", f"(s32[], f32[QUERIES], f32[QUERIES], f32[QUERIES], f32[ROWS], {stack})"),
        ("ENTRY", second),
        ("ROOT %w =", "%w ="),
        (
            'backend_config={"known_trip_count":{"n":"6"}}\n',
            'backend_config={"known_trip_count":{"n":"6"}}\n'
            f"%stacked = {stack} get-tuple-element(%w), index=5\n%start = s32[] constant(0)\n"
            f"%blank = f32[SCORES] broadcast(%start), dimensions={{}}\n"
            f"%init2 = (s32[], f32[SCORES], {stack}) tuple(%start, %blank, %stacked)\n"
            f"ROOT %w2 = (s32[], f32[SCORES], {stack}) while(%init2), condition=%cond2, body=%body2, "
            'backend_config={"known_trip_count":{"n":"6"}}\n',
        ),
        ("-> (s32[], f32[QUERIES], f32[QUERIES], f32[QUERIES], f32[ROWS], f32[6,8,256,256]) {\n      %init",
         f"-> (s32[], f32[SCORES], {stack}) {{\n      %init"),
        entry=LOOP,
    )  # fmt: skip
    (found,) = hlo_trace(module).fact(written_attention)
    scores = 4 * 8 * 256 * 256
    uses = {use.instruction.name: use.bytes // scores for use in found.uses}
    # Kept: read, and written as a slice. Sliced: read and written again.
    assert uses == {"s": 1, "p": 2, "o": 1, "kept": 2, "slice": 2, "half": 2}
    assert found.bytes == 6 * 10 * scores


def test_a_running_maximum_is_told_from_that_of_a_row() -> None:
    module = attention_program(
        ("%top = f32[ROWS] reduce", "%own = f32[ROWS] reduce"),
        ("%tops =", "%top = f32[ROWS] maximum(%own, %old)\n%tops ="),
        entry=LOOP,
    )
    program = HloProgram(module)
    maxima = RowMaxima(program, 8 * 256 * 256)
    repeated = maxima.repeated(program.numbers["softmax", "tops"])
    assert repeated == program.numbers["softmax", "top"]
    own = program.numbers["softmax", "own"]
    assert maxima.of(repeated) == (frozenset({own}), True)
    assert maxima.of(own) == (frozenset({own}), False)
    assert maxima.repeated(program.numbers["softmax", "diff"]) is None


@pytest.mark.parametrize(
    ("window", "row"),
    [
        ("{size=1x15 pad=0_0x7_7}", 8),
        ("{size=7x15 pad=3_3x7_7}", 32),
        ("{size=1x14 pad=0_0x6_7}", None),  # the last element does not see the first
        ("{size=1x8 pad=0_0x7_0}", None),  # a running maximum
        ("{size=1x1}", None),
    ],
)
def test_a_maximum_by_windows_is_one_of_rows_where_every_element_sees_all(window: str, row: int | None):
    module = hlo_module(f"""
        %larger (x: f32[], y: f32[]) -> f32[] {{
          %x = f32[] parameter(0)
          %y = f32[] parameter(1)
          ROOT %m = f32[] maximum(%x, %y)
        }}
        ENTRY %main (a: f32[4,8]) -> f32[4,8] {{
          %a = f32[4,8] parameter(0)
          %low = f32[] constant(-inf)
          ROOT %r = f32[4,8] reduce-window(%a, %low), window={window}, to_apply=%larger
        }}
    """)
    program = HloProgram(module)
    assert program.nodes[program.numbers["main", "r"]].row == row
