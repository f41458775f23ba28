"""transformers: generate."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=256,
    vocab_size=1000,
)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = LlamaForCausalLM(config).eval().to(device)
prompt = torch.randint(3, 1000, (2, 16), device=device)
tokens = model.generate(prompt, max_new_tokens=40, min_new_tokens=40, do_sample=False, pad_token_id=0)
print("done", tuple(tokens.shape))
