"""Sentences of any length in batches of similar length, each padded to its longest sentence."""

import torch
from torch import nn

torch.manual_seed(0)
vocab, width, rows, steps = 500, 128, 16, 40
lengths = torch.randint(8, 128, (steps * rows,)).sort().values
sentences = [torch.randint(1, vocab, (n,)) for n in lengths.tolist()]
batches = [
    nn.utils.rnn.pad_sequence(sentences[first : first + rows], batch_first=True)
    for first in range(0, len(sentences), rows)
]


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
for batch in torch.randperm(steps).tolist():
    ids = batches[batch]
    logits = model(ids)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten(), ignore_index=0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.3f}")
