"""A convolution, a norm of bfloat16, a float32 scale, and a producer that two reductions read."""

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(8, 16, 3, padding=1, dtype=torch.bfloat16)
        self.norm = torch.nn.LayerNorm(16, dtype=torch.bfloat16)
        self.scale = torch.nn.Parameter(torch.ones(16))

    def forward(self, x):
        h = self.convolution(x)
        h = self.norm(h.permute(0, 2, 3, 1))
        h = h * self.scale
        wave = torch.sin(h) * 2.0
        return wave.sum(0), wave.amax(3), torch.tanh(wave[:, ::2])


net = Net()
compiled = torch.compile(net)
total, most, part = compiled(torch.randn(4, 8, 16, 16).to(torch.bfloat16))
(total.sum() + most.sum() + part.sum()).backward()
print(total.sum().item())
