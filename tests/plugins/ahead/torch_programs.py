"""Programs for the tests of plans, as text: each is a separate file in the child."""

TABLE = '''
"""Two models that compile themselves: LayerNorm and MLP, and attention written out."""
import math
import torch
import torch.nn.functional as F
from torch import nn


class Mlp(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(dim), nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x)), approximate="tanh"))


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        batch, length, dim = x.shape
        split = (batch, length, self.heads, dim // self.heads)
        q, k, v = (part.view(split).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        scores = q @ k.transpose(-2, -1) / math.sqrt(dim // self.heads)
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
        weights = torch.softmax(scores, -1, dtype=torch.float32).to(x.dtype)
        return x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, dim))


cases = [(Mlp(4096, 16384), (4, 2048, 4096)), (Attention(2048, 16), (2, 1024, 2048))]
models = [(torch.compile(model.to("cuda").bfloat16()), shape) for model, shape in cases]
parameters = [parameter for model, _ in models for parameter in model.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.1)
for _ in range(6):
    for model, shape in models:
        x = torch.randn(*shape, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        model(x).float().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
'''

EAGER = '''
"""An eager program that asks for cuda in every way, reads values, and updates one parameter after the other."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

assert torch.cuda.is_available()
assert torch.cuda.get_device_capability() == (9, 0)
torch.cuda.manual_seed_all(1)
model = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(20))).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
scaler = torch.amp.GradScaler("cuda")
data = DataLoader(TensorDataset(torch.randn(64, 4096)), batch_size=8, num_workers=2, pin_memory=True)
scale = torch.tensor(2.0, device="cuda")
total, start = 0.0, torch.cuda.Event(enable_timing=True)
for (x,) in data:
    start.record()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = model(x.to("cuda", non_blocking=True)) * scale
    kept = y[y > 0]
    loss = y.float().square().mean() + kept.float().sum()
    scaler.scale(loss).backward()
    total += loss.item()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    torch.cuda.synchronize()
print("mean", total / len(data))
'''

BROKEN = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    if step == 2:
        raise ValueError("the program's own fault")
"""

LARGE = '''
"""Seven billion parameters, which no test machine holds with gradients and Adam's state."""
import torch
from torch import nn
model = nn.Sequential(*(nn.Linear(16384, 16384, bias=False) for _ in range(26))).to("cuda", torch.bfloat16)
assert sum(parameter.numel() for parameter in model.parameters()) > 6_900_000_000
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(6):
    model(torch.randn(1024, 16384, dtype=torch.bfloat16, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
'''

DEFAULTS = '''
"""An optimizer and a norm as torch chooses them for a GPU, and a loss that is read every tenth step."""
import torch
from torch import nn
model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(20):
    loss = model(torch.randn(64, 256, device="cuda")).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 0:
        print(loss.item())
'''

TWO_MODES = '''
"""Convolutions under autocast and without it, so that a graph is compiled again; a module that torch.fx made."""
import torch
from torch import nn
layers = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
model = torch.fx.symbolic_trace(nn.Sequential(layers, nn.Flatten(), nn.Linear(64, 10))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for _ in range(8):
    x, y = torch.randn(8, 3, 64, 64).cuda(), torch.randint(0, 10, (8,)).cuda()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    accuracy = (model(x).argmax(1) == y).float().mean()
'''

CONSTANTS = """
import torch
from torch import nn

class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64)

    def forward(self, x):
        keys = torch.tensor([], dtype=x.dtype, device=x.device)  # as caches of language models begin
        return torch.cat([keys, self.first(x).flatten()]).sum() * torch.tensor(2, device=x.device).float()

model = torch.compile(Cached().cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    model(torch.randn(8, 64, device="cuda")).backward()
    optimizer.step()
    optimizer.zero_grad()
"""

GENERATES = """
import torch
from torch import nn

class Step(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(100, 64), nn.Linear(64, 100)
        self.register_buffer("kept", torch.zeros(4, 32, 64))

    def forward(self, token, at):
        self.kept.index_copy_(1, at, self.embedding(token))
        return self.head(nn.functional.scaled_dot_product_attention(*[self.kept[:, None]] * 3)[:, 0, -1])

model = Step().cuda().eval()
step = torch.compile(model, mode="reduce-overhead", fullgraph=True)
token = torch.zeros(4, 1, dtype=torch.long, device="cuda")
with torch.no_grad():
    for at in range(10):
        token = step(token, torch.tensor([at], device="cuda")).argmax(-1, keepdim=True).clone()
        if (token == 2).all():
            break
"""

OWN_KERNELS = """
import torch
import triton
import triton.language as tl
from torch import Tensor

import perfscope


@torch.library.custom_op("mine::scaled", mutates_args=())
def scaled(x: Tensor) -> Tensor:
    raise RuntimeError("nothing runs")


scaled.register_fake(torch.empty_like)


@triton.jit
def doubled(x, y, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + place, 2 * tl.load(x + place, mask=place < n), mask=place < n)


perfscope.kernel_cost(scaled)(lambda x: perfscope.Cost(flops={"bfloat16": 1000 * x.numel()}, bytes=7 * x.nbytes))
perfscope.kernel_cost(doubled)(lambda x, y, n, BLOCK: perfscope.Cost(flops=n, bytes=2 * x.nbytes))
weight = torch.ones(256, 256, device="cuda", dtype=torch.bfloat16)
compiled = torch.compile(lambda x: scaled(x @ weight))
for _ in range(8):
    x = torch.randn(1024, 256, device="cuda", dtype=torch.bfloat16)
    y = torch.empty_like(x)
    doubled[(x.numel() // 1024,)](x, y, x.numel(), BLOCK=1024)
    compiled(y)
    perfscope.step()
"""
