# SPDX-License-Identifier: Apache-2.0
"""The Trainer of transformers: a causal language model on padded sentences, masks and labels.

package: accelerate
mesh: dp=2
expected: EQUIVALENT
wrong: LEARNING_RATE = 1e-3 * WORLD
"""

import os

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

WORLD = int(os.environ["WORLD_SIZE"])
LEARNING_RATE = 1e-3

print(f"{WORLD} processes")


class Sentences(Dataset):
    """Of several lengths, padded to the longest of all."""

    def __init__(self, count: int = 64, length: int = 8, vocabulary: int = 32) -> None:
        g = torch.Generator().manual_seed(0)
        self.length = length
        self.rows = []
        for _ in range(count):
            size = int(torch.randint(3, length + 1, (1,), generator=g))
            self.rows.append(torch.randint(1, vocabulary, (size,), generator=g))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i):
        ids = self.rows[i]
        padding = self.length - len(ids)
        ids = torch.cat([ids, torch.zeros(padding, dtype=torch.long)])
        mask = (torch.arange(self.length) < self.length - padding).long()
        labels = ids.masked_fill(mask == 0, -100)
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


config = LlamaConfig(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=16,
)
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=2,
    max_steps=1,
    learning_rate=LEARNING_RATE,
    logging_steps=1,
    report_to=[],
    save_strategy="no",
    use_cpu=True,
    disable_tqdm=True,
)
trainer = Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=Sentences())
trainer.train()
