"""diffusers: the sampling loop of a UNet."""

import torch
from diffusers import DDPMScheduler, UNet2DModel

device = "cuda" if torch.cuda.is_available() else "cpu"
model = UNet2DModel(
    sample_size=16,
    in_channels=3,
    out_channels=3,
    layers_per_block=1,
    block_out_channels=(32, 64),
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    norm_num_groups=8,
)
model.to(device).eval()
scheduler = DDPMScheduler(num_train_timesteps=100)
scheduler.set_timesteps(20)
sample = torch.randn(2, 3, 16, 16, device=device)
with torch.no_grad():
    for t in scheduler.timesteps:
        noise = model(sample, t.to(device)).sample
        sample = scheduler.step(noise, t, sample).prev_sample
print("done")
