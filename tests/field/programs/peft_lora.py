"""PEFT: LoRA on a causal language model."""

import torch
from peft import LoraConfig, get_peft_model
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
model = LlamaForCausalLM(config)
model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, lora_dropout=0.05))
model.print_trainable_parameters()
model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model.train()
for step in range(12):
    batch = torch.randint(0, 1000, (4, 32), device=device)
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("done")
