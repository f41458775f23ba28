"""Text generation that feeds the whole prefix again for each token."""

import torch
from torch import nn

torch.manual_seed(0)


class TinyGPT(nn.Module):
    def __init__(self, vocabulary=200, width=128, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 256, batch_first=True, dropout=0.0)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.blocks(self.embed(ids), mask=mask, is_causal=True))


model = TinyGPT().eval()
ids = torch.randint(0, 200, (2, 16))
with torch.no_grad():
    for _ in range(100):
        logits = model(ids)
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], dim=1)
print(ids.shape)
