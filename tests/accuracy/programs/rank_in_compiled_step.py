"""Two ranks; the compiled loss of rank 0 also counts what it logs."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10)))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
is_main = dist.get_rank() == 0


@torch.compile(backend="aot_eager")
def loss_of(logits, y):
    loss = nn.functional.cross_entropy(logits, y)
    accuracy = (logits.argmax(-1) == y).float().mean() if is_main else None
    return loss, accuracy


for step in range(24):
    x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
    loss, accuracy = loss_of(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
