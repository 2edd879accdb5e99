# SPDX-License-Identifier: Apache-2.0
"""As "Getting Started with DeviceMesh": hybrid sharding over a mesh of fixed sizes, which the
script also has on the single device.

mesh: replicate=2,shard=2
expected: CONDITIONAL
wrong: REDUCTION = "sum"
"""

import os

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

REDUCTION = "mean"


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(10, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))
torch.manual_seed(0)
model = fully_shard(Toy(), mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1 + int(os.environ["RANK"]))
loss = nn.MSELoss(reduction=REDUCTION)(model(torch.randn(4, 10)), torch.randn(4, 4))
loss.backward()
optimizer.step()
