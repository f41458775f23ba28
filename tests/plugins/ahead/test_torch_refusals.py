"""Programs that cannot be planned fail in one line: sizes that follow from data, a single step."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.model.errors import PerfscopeError
from tests.plugins.ahead.test_torch_plan import only, planned

pytestmark = [pytest.mark.aot, pytest.mark.slow]

SPARSE = """
import torch
table = torch.nn.Embedding(5000, 64, sparse=True).cuda()
model = table
optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
for step in range(6):
    model(torch.arange(256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

NESTED = """
import torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    rows = torch.nested.nested_tensor([torch.randn(n, 8) for n in (2, 5)], layout=torch.jagged, device="cuda")
    model(rows).to_padded_tensor(0.0).sum().backward()
    optimizer.step()
"""


PACKED = """
import torch
from torch.nn.utils.rnn import pack_padded_sequence
lstm = torch.nn.LSTM(32, 32, batch_first=True).cuda()
optimizer = torch.optim.SGD(lstm.parameters(), lr=0.1)
for step in range(6):
    rows, lengths = torch.randn(16, 20, 32, device="cuda"), torch.randint(1, 21, (16,))
    lstm(pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=False))[0].data.sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("program", "what"),
    [(NESTED, "nested tensors are"), (SPARSE, "sparse gradients are"), (PACKED, "aten._pack_padded_sequence is")],
)
def test_what_follows_from_data_is_named(tmp_path: Path, program: str, what: str) -> None:
    with pytest.raises(PerfscopeError, match=f"{what} not covered by a plan"):
        planned(tmp_path, program)


def test_sparse_gradients_of_a_compiled_module_are_named(tmp_path: Path) -> None:
    plan = only(planned(tmp_path, SPARSE.replace("model = table", "model = torch.compile(table)"))).plan
    assert not plan.complete
    assert "sparse gradients are not covered by a plan" in (plan.failure or "")


def test_a_single_step_is_too_few(tmp_path: Path) -> None:
    program = SPARSE.replace("sparse=True", "sparse=False").replace("range(6)", "range(1)")
    with pytest.raises(PerfscopeError, match="the program ended after 1 of the five steps that a plan walks through"):
        planned(tmp_path, program)
