# SPDX-License-Identifier: Apache-2.0
"""A communication hook sums gradients and does not divide.

DistributedDataParallel leaves the division to the hook.
"""

import right_ddp_communication_hook
import torch.distributed as dist

MESH, EXPECT, NAMES = {"dp": 2}, "NOT EQUIVALENT", "wrong_ddp_hook_not_divided.py:15"


def add_up(state, bucket):
    return (
        dist.all_reduce(bucket.buffer(), async_op=True)
        .get_future()
        .then(lambda done: done.value()[0])
    )


def step(world):
    return right_ddp_communication_hook.step(world, hook=add_up)
