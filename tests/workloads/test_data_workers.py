"""The function of a data set is named in every kind of worker; workers end as without a profiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.readers.load import load_all
from tests.session.programs import captured, write

LOADER = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset

class Text(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        words = [hash(str(number)) % 1000 for number in range(6000 if sys.argv[1] == "planted" else 10)]  # planted
        return torch.tensor([float(words[index % 10])])

def main():
    torch.set_num_threads(1)
    model = torch.nn.Linear(1, 2048)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    context = sys.argv[3] if len(sys.argv) > 3 else None
    loader = DataLoader(Text(), batch_size=4, num_workers=int(sys.argv[2]), multiprocessing_context=context)
    for step, batch in enumerate(loader):
        for _ in range(20):
            loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 80:
            break

if __name__ == "__main__":
    main()
"""


WORKERS = ("0", "1-fork", "1-spawn", "1-forkserver")


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("workers", WORKERS)
def test_the_function_of_the_data_set_is_named_in_workers_too(tmp_path: Path, workers: str) -> None:
    name = write(tmp_path, LOADER)
    done = captured("-q", "--level", "light", name, "planted", *workers.split("-"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (trace,) = load_all(tmp_path / "perfscope-runs" / "latest")
    finding = next(finding for rule, finding in analyze(trace).findings() if rule == "input_stall")
    made = [row for row in finding.evidence if "makes_batch" in row and "share" in row]
    assert made[0]["makes_batch"] == "Text.__getitem__"
    assert "Text.__getitem__" in finding.detail
    assert len([row for row in finding.evidence if "worker" in row]) == int(workers[0])


@pytest.mark.slow
@pytest.mark.torch
def test_workers_end_as_they_would_and_the_flag_leaves_everything_alone(tmp_path: Path) -> None:
    name = write(tmp_path, LOADER)
    done = captured("-q", "--no-stacks", "--level", "light", name, "fixed", "1", "fork", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    run = tmp_path / "perfscope-runs" / "latest"
    assert not [*run.glob("workers/*"), *run.glob("*/stacks*")]
