"""TRL: SFTTrainer on tokens."""

import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

words = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", *(f"w{n}" for n in range(997))])}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
config = LlamaConfig(
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=256,
    vocab_size=1000,
)
text = [" ".join(f"w{(n * 7 + k) % 997}" for k in range(30)) for n in range(64)]
arguments = SFTConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=4,
    max_steps=12,
    report_to=[],
    save_strategy="no",
    logging_steps=5,
    max_length=32,
    bf16=torch.cuda.is_available(),
)
SFTTrainer(
    model=LlamaForCausalLM(config),
    args=arguments,
    train_dataset=Dataset.from_dict({"text": text}),
    processing_class=tokenizer,
).train()
print("done")
