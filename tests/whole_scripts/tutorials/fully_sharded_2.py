# SPDX-License-Identifier: Apache-2.0
"""As "Getting Started with Fully Sharded Data Parallel (FSDP2)": a model on the meta device, mixed
precision, prefetching by hand, clipping, a full state dictionary.

mesh: dp=2
expected: EQUIVALENT
wrong: REDUCTION = "sum"
"""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

REDUCTION = "mean"
WORDS, WIDTH = 40, 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(8, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids):
        h = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            h = layer(h)
        return self.head(h).float()

    def reset_parameters(self):
        for m in self.modules():
            if m is not self and hasattr(m, "reset_parameters"):
                m.reset_parameters()


def main():
    rank = int(os.environ["LOCAL_RANK"])
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
    device = torch.device(f"{kind}:{rank}")
    torch.accelerator.set_device_index(rank)
    torch.distributed.init_process_group(
        backend=torch.distributed.get_default_backend_for_device(device)
    )
    torch.manual_seed(0)
    with torch.device("meta"):
        model = Model()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    assert isinstance(model, FSDPModule)
    assert all(isinstance(p, DTensor) and p.placements == (Shard(0),) for p in model.parameters())
    model.layers[0].set_modules_to_forward_prefetch([model.layers[1]])
    model.layers[1].set_modules_to_backward_prefetch([model.layers[0]])
    model.to_empty(device=device)
    model.reset_parameters()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    torch.manual_seed(rank)
    for _ in range(10):
        model.unshard()
        ids = torch.randint(0, WORDS, (8, 8), device=device)
        scores = model(ids)[:, :-1].flatten(0, 1)
        loss = F.cross_entropy(scores, ids[:, 1:].flatten(), reduction=REDUCTION)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    whole = get_model_state_dict(model, options=options)
    if rank == 0:
        torch.save(whole, "model.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
