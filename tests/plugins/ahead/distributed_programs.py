"""Programs of several processes. Each also runs for real on CPUs, over gloo, and then writes what torch's profiler saw.

``TRUTH``: the file for that; ``ALONE``: over a process group that exchanges nothing, so that only its memory is real.
"""

from __future__ import annotations

HEAD = """
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TRUTH = os.environ.get("TRUTH")
profile = torch.profiler.profile(record_shapes=True, profile_memory=True)
if TRUTH:
    profile.start()
if os.environ.get("ALONE"):
    import torch.testing._internal.distributed.fake_pg
    dist.init_process_group("fake", rank=0, world_size=int(os.environ["WORLD_SIZE"]), store=dist.HashStore())
else:
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
WORLD = dist.get_world_size()

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))
"""

TAIL = """
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
for step in range(9):
    with torch.profiler.record_function("look" if step >= 3 else "skip"):
        model(torch.randn(33, 256, device=DEVICE)[1:]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
if TRUTH:
    profile.stop()
    profile.export_chrome_trace(TRUTH)
dist.destroy_process_group()
"""

DDP = f"""{HEAD}
from torch.nn.parallel import DistributedDataParallel
model = nn.Sequential(*(Block() for _ in range(3))).to(DEVICE)
model = DistributedDataParallel(model, device_ids=[0] if DEVICE == "cuda" else None, bucket_cap_mb=3)
{TAIL}"""

COMPRESSED = DDP.replace(
    TAIL,
    f"""
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
model.register_comm_hook(None, fp16_compress_hook)
{TAIL}""",
)

FULLY_SHARD = f"""{HEAD}
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh(DEVICE, (WORLD,))
model = nn.Sequential(*(Block() for _ in range(3))).to(DEVICE)
for block in model:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
{TAIL}"""

TENSOR_PARALLEL = f"""{HEAD}
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
mesh = init_device_mesh(DEVICE, (WORLD,))
model = nn.Sequential(*(Block() for _ in range(3))).to(DEVICE)
for block in model:
    parallelize_module(block, mesh, {{"up": ColwiseParallel(), "down": RowwiseParallel()}})
{TAIL}"""

CLIPPED = FULLY_SHARD.replace(
    "        optimizer.step()\n",
    "        total = nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    "        dist.all_reduce(total.full_tensor())\n"
    "        optimizer.step()\n",
)

EVERY_KIND = f"""{HEAD}
assert dist.get_backend() == "nccl" and os.environ["LOCAL_RANK"] == "0" and torch.cuda.device_count() == WORLD
names = [None] * WORLD
dist.all_gather_object(names, "mine")
dist.broadcast_object_list([1], src=0)
pair = dist.new_group([0, 1], backend="nccl")
mesh = init_device_mesh("cuda", (WORLD // 2, 2), mesh_dim_names=("outer", "inner"))
assert mesh["inner"].get_local_rank() == 0 and mesh.mesh.tolist()[0] == [0, 1]
model = Block().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    y = model(torch.randn(32, 256, device="cuda"))
    y.mean().backward()
    held = y.detach()
    work = dist.all_reduce(held, async_op=True)
    busy = held @ held.T
    work.wait()
    dist.all_gather([torch.empty_like(held) for _ in range(2)], held, group=pair)
    dist.reduce_scatter_tensor(torch.empty(32 // WORLD, 256, device="cuda"), held)
    dist.all_to_all_single(torch.empty_like(held), held, group=mesh["inner"].get_group())
    dist.broadcast(held, 0)
    dist.send(held, 1)
    dist.recv(held, 1)
    dist.barrier()
    optimizer.step()
    optimizer.zero_grad()
"""

SPAWNED = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def train(rank, world):
    dist.init_process_group("nccl", rank=rank, world_size=world)
    model = DistributedDataParallel(torch.nn.Linear(64, 64).cuda(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        with model.no_sync():
            model(torch.randn(8, 64, device="cuda")).mean().backward()
        model(torch.randn(8, 64, device="cuda")).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

torch.multiprocessing.spawn(train, args=(4,), nprocs=4)
"""

PIPELINE = f"""{HEAD}
import sys
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
RANK, KIND = dist.get_rank(), "@KIND@"
if os.environ.get("FAIL") == str(RANK):
    raise ValueError("this rank fails")
pieces = []
for stage in [RANK, RANK + WORLD] if KIND == "interleaved" else [RANK]:
    blocks = nn.Sequential(*(Block() for _ in range(1 + (stage == 1)))).to(DEVICE)
    pieces.append(PipelineStage(blocks, stage, WORLD * (1 + (KIND == "interleaved")), torch.device(DEVICE)))
make = {{"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}}[KIND]
loss = nn.functional.mse_loss
schedule = make(pieces if KIND == "interleaved" else pieces[0], 8, loss_fn=loss)
optimizer = torch.optim.AdamW([value for piece in pieces for value in piece.submod.parameters()], foreach=True)
for step in range(7):
    with torch.profiler.record_function("look" if step >= 3 else "skip"):
        x = torch.randn(33, 256, device=DEVICE)[1:]
        schedule.step(*([x] if RANK == 0 else []), target=x if RANK == WORLD - 1 else None)
        optimizer.step()
        optimizer.zero_grad()
if TRUTH:
    profile.stop()
    profile.export_chrome_trace(TRUTH)
dist.barrier()
dist.destroy_process_group()
"""

REFUSED = {
    "FullyShardedDataParallel": "import torch\nimport torch.distributed as dist\n"
    "from torch.distributed.fsdp import FullyShardedDataParallel\n"
    "dist.init_process_group('nccl')\nFullyShardedDataParallel(torch.nn.Linear(4, 4).cuda())\n",
    "DataParallel": "import torch\ntorch.nn.DataParallel(torch.nn.Linear(4, 4).cuda())\n",
    "mixed_precision": "import torch\nimport torch.distributed as dist\n"
    "from torch.distributed.fsdp import MixedPrecision\n"
    "from torch.nn.parallel import DistributedDataParallel\n"
    "dist.init_process_group('nccl')\n"
    "DistributedDataParallel(torch.nn.Linear(4, 4).cuda(), mixed_precision=MixedPrecision())\n",
    "sparse gradients": "import torch\nimport torch.distributed as dist\n"
    "from torch.nn.parallel import DistributedDataParallel\n"
    "dist.init_process_group('nccl')\nDistributedDataParallel(torch.nn.Embedding(4, 4, sparse=True).cuda())\n",
}
