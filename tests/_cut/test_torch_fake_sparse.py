"""How many elements sparse results keep, beside the same ops on real tensors, in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
fake_tensor = pytest.importorskip("torch._subclasses.fake_tensor")

from perfscope._cut.torch_fake_sparse import with_elements  # noqa: E402
from perfscope.profiler.ahead.torch.ops import dense_parts  # noqa: E402

pytestmark = pytest.mark.torch

aten = torch.ops.aten
ROWS, WIDTH, LOOKED_UP = 50, 4, 6


def sparse(first: int = 0) -> Any:
    """Different rows, so that real ops leave as many as fakes can know of."""
    indices = torch.arange(first, first + LOOKED_UP).view(1, -1)
    return torch.sparse_coo_tensor(indices, torch.randn(LOOKED_UP, WIDTH), (ROWS, WIDTH), check_invariants=False)


OPS: dict[str, tuple[Any, Callable[[], tuple[Any, ...]]]] = {
    "clone": (aten.clone.default, lambda: (sparse(),)),
    "neg": (aten.neg.default, lambda: (sparse(),)),
    "mul": (aten.mul.Tensor, lambda: (sparse(), torch.tensor(2.0))),
    "coalesce": (aten._coalesce.default, lambda: (sparse(),)),
    "add": (aten.add.Tensor, lambda: (sparse(), sparse(LOOKED_UP))),
    "add_": (aten.add_.Tensor, lambda: (sparse(), sparse(LOOKED_UP))),
    "mask": (aten.sparse_mask.default, lambda: (torch.randn(ROWS, WIDTH), sparse().coalesce())),
    "zero": (aten.zero_.default, lambda: (sparse(),)),
}


def counted(
    func: Any, arguments: tuple[Any, ...], mode: Any, said: list[str] | None = None, problems: list[str] | None = None
) -> Any:
    return with_elements(
        func, arguments, func(*arguments), mode=mode,
        note=lambda what, answer: (said if said is not None else []).append(f"{what}: {answer}"),
        problem=(problems if problems is not None else []).append,
    )  # fmt: skip


@pytest.mark.parametrize("name", sorted(OPS))
def test_as_many_elements_as_of_the_real_op(name: str) -> None:
    func, arguments = OPS[name]
    really = func(*arguments())
    wanted = [tuple(one.shape) for one in (really._indices(), really._values())]
    mode, problems = fake_tensor.FakeTensorMode(), list[str]()
    with mode:
        given = arguments()
        if name == "mask":  # coalesce() of a fake is what is under test
            indices, values = torch.empty(1, LOOKED_UP, dtype=torch.int64), torch.empty(LOOKED_UP, WIDTH)
            given = (given[0], aten._sparse_coo_tensor_unsafe(indices, values, [ROWS, WIDTH], is_coalesced=True))
        found = counted(func, given, mode, problems=problems)
        assert [tuple(one.shape) for one in (found._indices(), found._values())] == wanted
        assert (found is given[0]) is name.endswith("_") or name == "zero"
    assert not problems


def test_that_rows_differ_is_said() -> None:
    mode, said = fake_tensor.FakeTensorMode(), list[str]()
    with mode:
        assert counted(aten._coalesce.default, (sparse(),), mode, said).is_coalesced()
    assert said == [f"coalesce: {LOOKED_UP} rows, all different"]


def test_a_bag_s_gradient_has_an_element_for_each_index() -> None:
    with fake_tensor.FakeTensorMode() as mode:
        indices = torch.zeros(LOOKED_UP, dtype=torch.int64)
        like = sparse()
        func = aten._embedding_bag_backward.default
        for padding, shares in ((-1, True), (0, False)):
            arguments = (torch.empty(2, WIDTH), indices, None, None, None, None, ROWS, False, 0, True, None, padding)
            found = with_elements(func, arguments, like, mode=mode, note=lambda *_: None, problem=lambda _: None)
            assert found._values().shape == (LOOKED_UP, WIDTH)
            assert (found._indices().untyped_storage() is indices.untyped_storage()) is shares


def test_an_op_that_is_not_known_is_named() -> None:
    mode, problems = fake_tensor.FakeTensorMode(), list[str]()
    with mode:
        counted(aten.index_select.default, (sparse(), 0, torch.zeros(2, dtype=torch.int64)), mode, problems=problems)
    (said,) = problems
    assert said.startswith("aten.index_select of a sparse tensor")


def test_dense_results_are_left_alone() -> None:
    with fake_tensor.FakeTensorMode() as mode:
        dense, rows = torch.randn(ROWS, WIDTH), sparse()
        assert counted(aten.add_.Tensor, (dense, rows), mode) is dense


def test_a_sparse_tensor_consists_of_indices_and_values() -> None:
    one = sparse()
    indices, values = dense_parts(one)
    assert indices.untyped_storage() is one._indices().untyped_storage()
    assert values.untyped_storage() is one._values().untyped_storage()
    (same,) = dense_parts(values)
    assert same is values
