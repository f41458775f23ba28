"""DeepSpeed: initialize, backward, step. For the deepspeed launcher or torchrun."""

import deepspeed
import torch

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))
config = {
    "train_micro_batch_size_per_gpu": 8,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 2},
}
engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for step in range(12):
    batch = torch.randn(8, 64, device=engine.device)
    loss = (engine(batch) - batch).pow(2).mean()
    engine.backward(loss)
    engine.step()
print("done")
