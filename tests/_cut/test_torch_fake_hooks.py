"""Communication hooks over buckets that are plain Python: torch's own hooks, and what they are answered."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from perfscope._cut.torch_fake_hooks import Done, HookedBucket, all_reduced, answer_of  # noqa: E402

pytestmark = pytest.mark.torch


class Group:
    """Four processes of which this is one, for what asks only for their number."""

    def size(self) -> int:
        return 4


def bucket() -> HookedBucket:
    parameters = [torch.zeros(2, 3), torch.zeros(4)]
    return HookedBucket(1, torch.arange(10.0), parameters, last=True)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is summed up over the processes, which all have the same."""
    found: list[Any] = []

    class Work:
        def get_future(self) -> Done:
            return Done([found[-1]])

    def all_reduce(tensor: Any, *_: Any, **__: Any) -> Work:
        found.append(tensor)
        tensor.mul_(Group().size())
        return Work()

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    return found


def test_gradients_are_parts_of_the_buffer() -> None:
    one = bucket()
    first, second = one.gradients()
    assert first.shape == (2, 3)
    assert second.tolist() == [6.0, 7.0, 8.0, 9.0]
    second.zero_()
    assert one.buffer()[6:].tolist() == [0.0] * 4
    assert (one.index(), one.is_last(), len(one.parameters())) == (1, True, 2)


@pytest.mark.parametrize(
    ("hook", "dtype"),
    [("allreduce_hook", "float32"), ("fp16_compress_hook", "float16"), ("bf16_compress_hook", "bfloat16")],
)
def test_torch_s_own_hooks_run_over_it(sent: list[Any], hook: str, dtype: str) -> None:
    hooks = pytest.importorskip("torch.distributed.algorithms.ddp_comm_hooks.default_hooks")
    one = bucket()
    answer = answer_of(getattr(hooks, hook)(Group(), one))
    assert [str(tensor.dtype) for tensor in sent] == [f"torch.{dtype}"]
    assert answer is one.buffer()
    assert answer.tolist() == list(range(10))  # the mean of equal gradients


def test_a_wrapped_hook_runs_over_it(sent: list[Any]) -> None:
    hooks = pytest.importorskip("torch.distributed.algorithms.ddp_comm_hooks.default_hooks")
    one = bucket()
    answer_of(hooks.fp16_compress_wrapper(hooks.allreduce_hook)(Group(), one))
    assert [str(tensor.dtype) for tensor in sent] == ["torch.float16"]


def test_built_in_hooks_send_what_torch_s_do(sent: list[Any]) -> None:
    one = bucket()
    assert answer_of(all_reduced(Group(), one, dtype=torch.float16)).tolist() == list(range(10))
    assert answer_of(all_reduced(Group(), one)) is one.buffer()
    assert [str(tensor.dtype) for tensor in sent] == ["torch.float16", "torch.float32"]


def test_a_future_of_torch_s_own_is_read_too() -> None:
    future: Any = torch.futures.Future()
    future.set_result(torch.ones(3))
    assert answer_of(future).tolist() == [1.0] * 3
    chained = Done([torch.ones(2)]).then(lambda one: one.value()[0] + 1).then(lambda one: one.wait() * 2)
    assert answer_of(chained).tolist() == [4.0, 4.0]
