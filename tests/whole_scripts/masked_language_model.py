# SPDX-License-Identifier: Apache-2.0
"""Some tokens of each sequence are masked on the device, others are padding.

mesh: dp=2
expected: EQUIVALENT
wrong: count_everywhere = False
"""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

VOCABULARY, LENGTH, PAD, MASK, IGNORED = 20, 6, 0, 1, -100
count_everywhere = True


class Encoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width, padding_idx=PAD)
        self.positions = nn.Embedding(LENGTH, width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids, padded):
        x = self.tokens(ids) + self.positions.weight
        seen, _ = self.attention(x, x, x, key_padding_mask=padded, need_weights=False)
        return self.head(self.norm(x + seen))


def main():
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    model = DistributedDataParallel(Encoder(8).to(device), device_ids=[device])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = TensorDataset(
        torch.randint(2, VOCABULARY, (32, LENGTH)), torch.randint(3, LENGTH + 1, (32,))
    )
    loader = DataLoader(data, batch_size=4 // world, sampler=DistributedSampler(data))
    torch.manual_seed(rank)
    for ids, lengths in loader:
        ids, lengths = ids.to(device), lengths.to(device)
        padded = torch.arange(LENGTH, device=device) >= lengths[:, None]
        chance = torch.full(ids.shape, 0.2, device=device).masked_fill(padded, 0.0)
        masked = torch.bernoulli(chance).bool()
        labels = ids.masked_fill(~masked, IGNORED)
        ids = ids.masked_fill(masked, MASK).masked_fill(padded, PAD)
        count = (labels != IGNORED).sum().float()
        if count_everywhere:
            dist.all_reduce(count)
            count /= world
        scores = model(ids, padded)
        loss = F.cross_entropy(
            scores.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        optimizer.zero_grad()
        (loss / count).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
