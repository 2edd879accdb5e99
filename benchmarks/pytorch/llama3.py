# SPDX-License-Identifier: Apache-2.0
"""Llama-3 at full size: from the training step to the verdict, with times.

FSDP2 with tensor, sequence and loss parallelism.

usage: PYTHONPATH=python:examples/torch python benchmarks/pytorch/llama3.py [--size 8B|70B|405B]
           [--mesh dp=32,tp=8 | --mesh replicate=8,dp=32,tp=8] [--layers N] [--vocab N]
           [--kv-heads N] [--ranks classes|all] [--jobs N]
"""

import argparse
import math
import os
import resource
import time

import shardproof.torch as sp
from llama_parallel import batch, tensor_parallel, train
from models import Config, Llama
from torch.distributed.fsdp import fully_shard

SIZES = {
    "8B": Config(
        dim=4096,
        layers=32,
        heads=32,
        kv_heads=8,
        hidden=14336,
        vocab=128256,
        seq=8192,
        theta=500000.0,
    ),
    "70B": Config(
        dim=8192,
        layers=80,
        heads=64,
        kv_heads=8,
        hidden=28672,
        vocab=128256,
        seq=8192,
        theta=500000.0,
    ),
    "405B": Config(
        dim=16384,
        layers=126,
        heads=128,
        kv_heads=8,
        hidden=53248,
        vocab=128256,
        seq=8192,
        theta=500000.0,
    ),
}


def processor():
    """Seconds of processors, of this process and of those that have ended."""
    own, others = os.times(), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.user + own.system + others.ru_utime + others.ru_stime


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", default="8B", choices=SIZES)
    parser.add_argument("--mesh", default="dp=32,tp=8")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--vocab", type=int)
    parser.add_argument("--kv-heads", type=int)
    parser.add_argument("--ranks", default="classes")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep")
    options = parser.parse_args()
    config = SIZES[options.size]
    config.layers = options.layers or config.layers
    config.vocab, config.kv_heads = (
        options.vocab or config.vocab,
        options.kv_heads or config.kv_heads,
    )
    mesh = sp.Mesh.parse(options.mesh)
    data = [a for a in ("replicate", "dp") if a in mesh.sizes]
    ways = math.prod(mesh.sizes[a] for a in data)

    def llama3(world):
        model = Llama(config)
        if not world.single:
            tensor_parallel(model, world.mesh("tp"), loss_is_parallel=True)
            for block in model.layers.values():
                fully_shard(block, mesh=world.mesh(*data))
            fully_shard(model, mesh=world.mesh(*data))
        return train(
            world,
            model,
            *batch(world, config, 2 * ways, **dict.fromkeys(data, 0)),
            loss_is_parallel=True,
        )

    start = time.monotonic()
    captured = sp.capture(llama3, mesh=options.mesh, ranks=options.ranks, jobs=options.jobs)
    print(
        f"recorded {len(captured.recorded)} of {mesh.world} ranks and one device in "
        f"{captured.seconds:.1f} s, {processor():.1f} s of processors",
        flush=True,
    )
    import tempfile

    from shardproof import verify_files

    with tempfile.TemporaryDirectory() as folder:
        written = time.monotonic()
        _, plan = captured.write(options.keep or f"{folder}/llama3")
        print(f"written in {time.monotonic() - written:.1f} s", flush=True)
        verified, before = time.monotonic(), processor()
        report = verify_files(plan)
        print(
            f"verified in {time.monotonic() - verified:.1f} s, {processor() - before:.1f} s of "
            f"processors; {time.monotonic() - start:.1f} s in all"
        )
        print(
            f"memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB while "
            f"recording"
        )
        print(report)


if __name__ == "__main__":
    main()
