"""Sentences of any length, padded to the longest of the data set."""

import torch
from torch import nn

torch.manual_seed(0)
vocab, width, longest = 500, 128, 128
lengths = torch.randint(8, 40, (640,))
data = torch.zeros(640, longest, dtype=torch.long)
for row, n in enumerate(lengths.tolist()):
    data[row, :n] = torch.randint(1, vocab, (n,))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(vocab, width, padding_idx=0)
        self.block = nn.TransformerEncoderLayer(width, 4, 256, batch_first=True, dropout=0.0)
        self.head = nn.Linear(width, vocab)

    def forward(self, ids):
        mask = ids == 0
        return self.head(self.block(self.embed(ids), src_key_padding_mask=mask))


model = Tagger()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for step in range(40):
    ids = data[step * 16 : step * 16 + 16]
    logits = model(ids)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten(), ignore_index=0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.3f}")
