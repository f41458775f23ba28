"""A policy with forbidden actions and an entropy bonus: the probability of a forbidden action is 0."""

import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 12))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
for _ in range(16):
    states, advantages = torch.randn(64, 32), torch.randn(64)
    forbidden = torch.rand(64, 12) < 0.3
    forbidden[:, 0] = False
    logits = policy(states).masked_fill(forbidden, float("-inf"))
    log_probabilities = logits.log_softmax(-1)
    probabilities = log_probabilities.exp()
    actions = torch.multinomial(probabilities.nan_to_num(1 / 12), 1)
    entropy = -(probabilities * log_probabilities).sum(-1).mean()
    loss = -(log_probabilities.gather(-1, actions).squeeze(-1) * advantages).mean() - 0.01 * entropy
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.4f}")
