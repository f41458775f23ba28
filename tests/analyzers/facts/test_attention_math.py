"""Dataflow around a softmax: what is attention, and which ops are its scores'."""

from __future__ import annotations

from perfscope.analyzers.facts.attention_math import find_attentions
from perfscope.analyzers.facts.graph_flow import short_name
from tests.graphs import GraphBuilder

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


def test_the_backward_is_joined_by_its_sequence_number():
    g = GraphBuilder()
    s, v = scores_of(g)
    p = g.op("_softmax", [s], sequence=3)
    y = g.op("bmm", [p, v], shape=(8, 64, 16), sequence=4)
    grad = g.op("bmm", [y, v], shape=SCORES, phase="backward", sequence=4)
    g.op("_softmax_backward_data", [grad, p], phase="backward", sequence=3)
    g.op("_softmax_backward_data", [grad, p], phase="backward", sequence=77)
    (found,) = find_attentions(g.graph())
    assert found.ops == (1, 4)
