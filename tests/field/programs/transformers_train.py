"""transformers: a training loop of one's own."""

import torch
from transformers import BertConfig, BertForSequenceClassification

config = BertConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, vocab_size=1000)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = BertForSequenceClassification(config).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(12):
    ids = torch.randint(0, 1000, (4, 64), device=device)
    labels = torch.randint(0, 2, (4,), device=device)
    loss = model(input_ids=ids, labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("done")
