"""transformers: Trainer."""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Reviews(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return {"input_ids": torch.randint(0, 1000, (64,)), "labels": torch.tensor(index % 2)}


config = BertConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, vocab_size=1000)
arguments = TrainingArguments(
    tempfile.mkdtemp(), per_device_train_batch_size=4, max_steps=12, report_to=[], logging_steps=5, save_strategy="no"
)
Trainer(model=BertForSequenceClassification(config), args=arguments, train_dataset=Reviews()).train()
print("done")
