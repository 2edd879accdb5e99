# SPDX-License-Identifier: Apache-2.0
"""The Trainer of transformers: a classifier of sentences, each batch padded to its longest.

transformers 5.23 multiplies the loss of a model that takes keyword arguments by the number of
processes, as if it were divided by the tokens of all. This one takes the mean of its samples, so
that it comes out as many times too large, unless average_tokens_across_devices is False.

package: accelerate
mesh: dp=2
expected: CONDITIONAL
wrong: AVERAGE_TOKENS = True
"""

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
)

AVERAGE_TOKENS = False


class Reviews(Dataset):
    def __init__(self, count: int = 64, vocabulary: int = 32) -> None:
        g = torch.Generator().manual_seed(0)
        sizes = torch.randint(3, 9, (count,), generator=g).tolist()
        self.rows = [torch.randint(1, vocabulary, (n,), generator=g) for n in sizes]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "label": i % 2}


def collate(rows):
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row["input_ids"])] = row["input_ids"]
        mask[i, : len(row["input_ids"])] = 1
    labels = torch.tensor([row["label"] for row in rows])
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


config = BertConfig(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    max_position_embeddings=16,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    num_labels=2,
)
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=4,
    max_steps=1,
    learning_rate=1e-3,
    logging_steps=1,
    report_to=[],
    save_strategy="no",
    use_cpu=True,
    disable_tqdm=True,
    average_tokens_across_devices=AVERAGE_TOKENS,
)
trainer = Trainer(
    model=BertForSequenceClassification(config),
    args=arguments,
    train_dataset=Reviews(),
    data_collator=collate,
)
trainer.train()
