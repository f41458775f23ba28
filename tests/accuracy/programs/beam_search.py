"""Beam search: the whole cache is picked by beam for each token."""

import torch
from torch import nn

torch.manual_seed(0)
beams, heads, size, longest, vocab = 8, 8, 64, 256, 96
width = heads * size
embed, qkv, head = nn.Embedding(vocab, width), nn.Linear(width, 3 * width), nn.Linear(width, vocab)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.qkv, self.head = embed, qkv, head

    def forward(self, tokens, keys, values, position):
        q, k, v = self.qkv(self.embed(tokens)).view(beams, 1, 3, heads, size).permute(2, 0, 3, 1, 4)
        keys[:, :, position : position + 1] = k
        values[:, :, position : position + 1] = v
        mixed = nn.functional.scaled_dot_product_attention(q, keys[:, :, : position + 1], values[:, :, : position + 1])
        return self.head(mixed.transpose(1, 2).reshape(beams, width))


model = Decoder().eval()
keys, values = torch.zeros(beams, heads, longest, size), torch.zeros(beams, heads, longest, size)
tokens, score = torch.zeros(beams, 1, dtype=torch.long), torch.zeros(beams)
with torch.inference_mode():
    for position in range(200):
        logits = model(tokens, keys, values, position).log_softmax(-1) + score[:, None]
        score, index = logits.flatten().topk(beams)
        beam, tokens = index // vocab, (index % vocab)[:, None]
        keys = keys.index_select(0, beam)
        values = values.index_select(0, beam)
print(score.shape)
