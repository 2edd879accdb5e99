"""Llama-3 at full size, FSDP2 x tensor, sequence and loss parallel: from the step to the verdict, with times.

usage: PYTHONPATH=python:examples/torch python benchmarks/pytorch/llama3.py [--size 8B|70B|405B] [--mesh dp=32,tp=8] [--layers N] [--ranks classes|all] [--jobs N]
"""

import argparse
import time

import shardproof.torch as sp
from llama_parallel import batch, tensor_parallel, train
from models import Config, Llama
from torch.distributed.fsdp import fully_shard

SIZES = {
    "8B": Config(dim=4096, layers=32, heads=32, kv_heads=8, hidden=14336, vocab=128256, seq=8192, theta=500000.0),
    "70B": Config(dim=8192, layers=80, heads=64, kv_heads=8, hidden=28672, vocab=128256, seq=8192, theta=500000.0),
    "405B": Config(dim=16384, layers=126, heads=128, kv_heads=8, hidden=53248, vocab=128256, seq=8192, theta=500000.0),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", default="8B", choices=SIZES)
    parser.add_argument("--mesh", default="dp=32,tp=8")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--ranks", default="classes")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep")
    options = parser.parse_args()
    config = SIZES[options.size]
    config.layers = options.layers or config.layers
    mesh = sp.Mesh.parse(options.mesh)

    def llama3(world):
        model = Llama(config)
        if not world.single:
            tensor_parallel(model, world.mesh("tp"), loss_is_parallel=True)
            for block in model.layers.values():
                fully_shard(block, mesh=world.mesh("dp"))
            fully_shard(model, mesh=world.mesh("dp"))
        return train(world, model, *batch(world, config, 2 * mesh.sizes["dp"], dp=0), loss_is_parallel=True)

    start = time.monotonic()
    captured = sp.capture(llama3, mesh=options.mesh, ranks=options.ranks, jobs=options.jobs)
    print(f"recorded {len(captured.recorded)} of {mesh.world} ranks and one device in {captured.seconds:.1f} s", flush=True)
    import tempfile

    from shardproof import verify_files

    with tempfile.TemporaryDirectory() as folder:
        written = time.monotonic()
        _, plan = captured.write(options.keep or f"{folder}/llama3")
        print(f"written in {time.monotonic() - written:.1f} s", flush=True)
        verified = time.monotonic()
        report = verify_files(plan)
        print(f"verified in {time.monotonic() - verified:.1f} s; {time.monotonic() - start:.1f} s in all")
        print(report)


if __name__ == "__main__":
    main()
