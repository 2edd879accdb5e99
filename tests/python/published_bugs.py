# SPDX-License-Identifier: Apache-2.0
"""Small training steps with the bugs of TTrace's table (Ju et al., 2025), each right and wrong.

A step has the argument `wrong`. On a mesh of sizes 1 it is the single device's, which has no bug.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import megatron_parallel as megatron
import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import RMSNorm
from torch import nn

DIM, HIDDEN, VOCAB, BATCH, LENGTH = 16, 32, 32, 4, 8
E4M3 = torch.float8_e4m3fn


def reduced(world, model, *axes, divide=1.0, skip=()):
    """Sums gradients over axes, and divides them."""
    for name, p in model.named_parameters():
        if p.grad is not None and name not in skip:
            dist.all_reduce(p.grad, group=world.group(*axes))
            p.grad /= divide


def update(model):
    torch.optim.SGD(model.parameters(), lr=0.1).step()


class MLP(nn.Module):
    def __init__(self, up=None, down=None):
        super().__init__()
        self.norm = RMSNorm(DIM, 1e-5)
        self.up = up or nn.Linear(DIM, HIDDEN, bias=False)
        self.down = down or nn.Linear(HIDDEN, DIM, bias=False)

    def forward(self, x):
        return x + self.down(F.silu(self.up(self.norm(x))))


def batch(world, **shard):
    return (world.input(name, (BATCH, LENGTH, DIM), shard=shard) for name in "xy")


# ---- tensor and sequence parallelism ----
def embedding_mask(world, wrong=False):
    """The window of a cut vocabulary is off by one."""
    group = world.group("tp")

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = megatron.VocabParallelEmbedding(VOCAB, DIM, group, shift=int(wrong))
            self.head = nn.Linear(DIM, VOCAB, bias=False)

        def forward(self, ids):
            return self.head(self.embedding(ids))

    model = world.parameters(Model(), {"embedding.weight": {"tp": 0}})
    ids = world.input("ids", (BATCH, LENGTH), torch.long, high=VOCAB)
    loss = F.cross_entropy(model(ids).flatten(0, 1), ids.roll(-1, 1).flatten())
    loss.backward()
    update(model)
    return loss


def norm_not_synchronised(world, wrong=False):
    """Under sequence parallelism, gradients of norms are not summed over tp."""
    group = world.group("tp")
    model = MLP(
        megatron.ColumnParallel(DIM, HIDDEN, group, copy=False),
        megatron.RowParallel(HIDDEN, DIM, group, megatron.ScatterSequence),
    )

    def norm(x, whole=model.norm.forward):
        return megatron.GatherSequence.apply(whole(x), group)

    model.norm.forward = norm
    world.parameters(model, {"up.weight": {"tp": 0}, "down.weight": {"tp": 1}, "norm.weight": {}})
    x, y = batch(world, tp=1)
    loss = F.mse_loss(model(x), y)
    loss.backward()
    for p in model.up.weight, model.down.weight:
        p.grad /= world.size  # the loss is a mean of the ranks'
    if not wrong:
        dist.all_reduce(model.norm.weight.grad, group=group)
    model.norm.weight.grad /= world.size
    update(model)
    return loss


def router_not_synchronised(world, wrong=False):
    """Under sequence parallelism, gradients of a router are not summed over tp."""

    class Router(nn.Linear):
        def forward(self, x):
            return super().forward(x).softmax(-1)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = Router(DIM, 4, bias=False)
            self.experts = nn.ModuleList(nn.Linear(DIM, DIM, bias=False) for _ in range(4))

        def forward(self, x):
            share = self.router(x)
            return sum(share[..., i : i + 1] * e(x) for i, e in enumerate(self.experts))

    model = world.parameters(Model())
    x, y = batch(world, tp=1)
    loss = F.mse_loss(model(x), y)
    loss.backward()
    skip = ("router.weight",) if wrong else ()
    reduced(world, model, "tp", divide=world.size, skip=skip)
    update(model)
    return loss


# ---- the loss ----
def _loss_scale(world, axis, dim, wrong):
    model = world.parameters(MLP())
    x, y = batch(world, **{axis: dim})
    loss = F.mse_loss(model(x), y)
    (loss / world.size if wrong else loss).backward()
    reduced(world, model, axis, divide=world.size)
    update(model)
    return loss


def loss_scale_context_parallel(world, wrong=False):
    """The loss is divided by the ranks of context parallelism, and gradients are, too."""
    return _loss_scale(world, "cp", 1, wrong)


def loss_scale_data_parallel(world, wrong=False):
    """The loss is divided by the ranks of data parallelism, and gradients are, too."""
    return _loss_scale(world, "dp", 0, wrong)


# ---- recomputation ----
class Recomputed(torch.autograd.Function):
    """Runs a function once more in the backward pass, with the input that `saved` has then."""

    @staticmethod
    def forward(ctx, x, saved, f):
        ctx.saved, ctx.f = saved, f
        saved.copy_(x)
        return f(x)

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            x = ctx.saved.detach().clone().requires_grad_()
            torch.autograd.backward(ctx.f(x), gradient)
        return x.grad, None, None


def stale_recompute_input(world, wrong=False):
    """Two layers save their inputs in one buffer."""
    layers = nn.Sequential(MLP(), MLP())
    model = world.parameters(layers)
    x, y = batch(world, dp=0)
    h, saved = x.requires_grad_(), torch.empty_like(x)
    for layer in layers:
        if world.single:
            h = layer(h)
        else:
            h = Recomputed.apply(h, saved if wrong else torch.empty_like(h), layer)
    loss = F.mse_loss(h, y)
    loss.backward()
    reduced(world, model, "dp", divide=world.size)
    update(model)
    return loss


# ---- ZeRO ----
def _zero(world, model, kept=()):
    """Each rank updates its part of the parameters, and sends it. kept: those that stay."""
    for name, p in model.named_parameters():
        n = p.numel() // world.size
        part = torch.empty(n)
        dist.reduce_scatter_tensor(part, p.grad.flatten())
        mine = slice(world.rank * n, world.rank * n + n)
        new = torch.empty(p.numel())
        dist.all_gather_into_tensor(new, p.detach().flatten()[mine] - 0.1 * part / world.size)
        p.grad = None
        if name not in kept:
            yield name, new.view_as(p)


def untied_under_zero(world, wrong=False):
    """The embedding gets a new tensor, and the head, which was tied to it, keeps the old one."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(VOCAB, DIM)
            self.head = nn.Linear(DIM, VOCAB, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids):
            return self.head(self.embedding(ids))

    model = world.parameters(Model())
    ids = world.input("ids", (BATCH, LENGTH), torch.long, shard={"dp": 0}, high=VOCAB)
    loss = F.cross_entropy(model(ids).flatten(0, 1), ids.roll(-1, 1).flatten())
    loss.backward()
    with torch.no_grad():
        for _, new in _zero(world, model):
            if wrong and not world.single:
                model.embedding.weight = nn.Parameter(new)
            else:
                model.embedding.weight.copy_(new)
    return loss


def update_lost_under_zero(world, wrong=False):
    """An update is gathered and not copied into its parameter."""
    model = world.parameters(MLP())
    x, y = batch(world, dp=0)
    loss = F.mse_loss(model(x), y)
    loss.backward()
    kept = ("down.weight",) if wrong and not world.single else ()
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, new in _zero(world, model, kept):
            parameters[name].copy_(new)
    return loss


# ---- pipelines ----
class Send(torch.autograd.Function):
    """To the next stage; its gradient comes back."""

    @staticmethod
    def forward(ctx, x, rank):
        ctx.rank, ctx.shape = rank, x.shape
        dist.send(x.detach(), rank)
        return x.sum() * 0

    @staticmethod
    def backward(ctx, _):
        gradient = torch.empty(ctx.shape)
        dist.recv(gradient, ctx.rank)
        return gradient, None


class Receive(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, rank):
        ctx.rank = rank
        received = torch.empty_like(x)
        dist.recv(received, rank)
        return received

    @staticmethod
    def backward(ctx, gradient):
        dist.send(gradient.contiguous(), ctx.rank)
        return torch.zeros_like(gradient), None


def stage_division(world, wrong=False):
    """Of three layers, the second is in no stage of a pipeline of two."""
    first, last = world.single or world.rank == 0, world.single or world.rank == 1
    own = range(3) if world.single else range(2 - wrong) if first else range(2, 3)
    model = world.parameters(nn.ModuleDict({f"layer{i}": MLP() for i in own}))
    x, y = batch(world)
    h = x if first else Receive.apply(torch.zeros_like(x).requires_grad_(), 0)
    for layer in model.values():
        h = layer(h)
    loss = F.mse_loss(h, y) if last else Send.apply(h, 1)
    loss.backward()
    if not world.single:
        loss = loss.detach()
        dist.broadcast(loss, 1)
    update(model)
    world.output("loss", loss, mean=())


# ---- communication and kernels ----
class Stream:
    """Communication that is done when it is waited for, as late as on a busy device."""

    def __init__(self, group):
        self.group, self.waiting = group, []

    def reduce(self, t):
        self.waiting.append(t)

    def wait(self):
        for t in self.waiting:
            dist.all_reduce(t, group=self.group)
        self.waiting.clear()


def gradient_overwritten(world, wrong=False):
    """A bucket takes the next gradient before the reduction of the last has ended."""
    model = world.parameters(MLP())
    x, y = batch(world, dp=0)
    loss = F.mse_loss(model(x), y)
    loss.backward()
    stream = Stream(world.group("dp"))
    bucket = torch.empty(DIM * HIDDEN)
    for p in (model.up.weight, model.down.weight):
        bucket.copy_(p.grad.flatten())
        stream.reduce(bucket)
        if not wrong:
            stream.wait()
        p.grad = bucket.view(p.shape) / world.size if wrong else bucket.view(p.shape).clone()
        if not wrong:
            p.grad /= world.size
    stream.wait()
    reduced(world, model.norm, "dp", divide=world.size)
    update(model)
    return loss


class RowKernel(torch.autograd.Function):
    """A product whose backward is a kernel that reads the gradient's memory row by row."""

    @staticmethod
    def forward(ctx, x, weight, wrong):
        ctx.save_for_backward(x, weight)
        ctx.wrong = wrong
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        rows = gradient if ctx.wrong else gradient.contiguous()
        shape = rows.shape
        rows = rows.as_strided(shape, (shape[1] * shape[2], shape[2], 1))
        return rows @ weight, rows.flatten(0, 1).t() @ x.flatten(0, 1), None


def gradient_not_contiguous(world, wrong=False):
    """A kernel takes a transposed gradient for a contiguous one."""

    class Kernel(nn.Linear):
        def forward(self, x):
            return RowKernel.apply(x, self.weight, wrong and not world.single)

    model = world.parameters(MLP(down=Kernel(HIDDEN, DIM, bias=False)))
    x, y = batch(world, dp=0)
    # sequence first, as in Megatron-LM
    out = model.down(F.silu(model.up(model.norm(x)))).transpose(1, 2)
    loss = (out.contiguous() - y.transpose(1, 2)).square().mean()
    loss.backward()
    reduced(world, model, "dp", divide=world.size)
    update(model)
    return loss


# ---- FP8 ----
def _cast(t, largest):
    """To float8 with a scale, and back, as a product of float8 tensors has it."""
    scale = 448.0 / largest.clamp(min=1e-12)
    return (t * scale).clamp(-448.0, 448.0).to(E4M3).to(t.dtype) / scale


class Linear8(nn.Module):
    """A product in emulated FP8: E4M3 of the input and of the weight, gradients as they are.

    largest: the largest absolute value of all ranks' parts of the input.
    """

    def __init__(self, inputs, outputs, largest=torch.Tensor.clone, cache=None, key=""):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.largest, self.cache, self.key = largest, {} if cache is None else cache, key

    def weight8(self):
        """Cast once for all microbatches."""
        if self.key not in self.cache:
            self.cache[self.key] = _cast(self.weight.detach(), self.weight.detach().abs().max())
        return self.cache[self.key] + (self.weight - self.weight.detach())

    def forward(self, x):
        cast = _cast(x.detach(), self.largest(x.detach().abs().max()))
        return F.linear(cast + (x - x.detach()), self.weight8())


def _largest_over(world, *axes):
    def largest(value):
        value = value.clone()
        dist.all_reduce(value, op=dist.ReduceOp.MAX, group=world.group(*axes))
        return value

    return largest


class GatherCast(torch.autograd.Function):
    """Casts a part of a sequence to FP8, gathers the parts, and takes the scale from all of them.

    Each rank multiplies by its own scale, which has to be the same on all of them.
    """

    @staticmethod
    def forward(ctx, x, group, largest):
        ctx.group = group
        scale = 448.0 / largest(x.abs().max()).clamp(min=1e-12)
        cast = (x * scale).clamp(-448.0, 448.0).to(E4M3).view(torch.uint8)
        parts = [torch.empty_like(cast) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, cast.contiguous(), group=group)
        return torch.cat(parts, 1).view(E4M3).to(x.dtype) / scale

    @staticmethod
    def backward(ctx, gradient):
        return megatron._scatter(gradient, ctx.group), None, None


def fp8_scale_group(world, wrong=False):
    """The scale of an FP8 cast is that of a part of the ranks which gather the tensor."""
    group, axes = world.group("tp"), ("dp",) if wrong else ("dp", "tp")
    largest = _largest_over(world, *axes)
    tp = world.mesh("tp").size()

    class Up(megatron.ColumnParallel):
        def forward(self, x):
            return super().forward(GatherCast.apply(x.relu().square(), group, largest))

    model = MLP(
        Up(DIM, HIDDEN, group, copy=False),
        megatron.RowParallel(HIDDEN, DIM, group, megatron.ScatterSequence),
    )
    world.parameters(model, {"up.weight": {"tp": 0}, "down.weight": {"tp": 1}, "norm.weight": {}})
    x, y = batch(world, dp=0, tp=1)
    loss = F.mse_loss(model(x), y)
    loss.backward()
    dist.all_reduce(model.norm.weight.grad, group=group)
    for p in model.parameters():
        p.grad /= tp  # the loss is a mean of the ranks'
    reduced(world, model, "dp", divide=world.mesh("dp").size())
    update(model)
    return loss


def fp8_wrong_tensor(world, wrong=False):
    """Of two weights cast to FP8, a product takes the other one."""
    cache: dict[str, torch.Tensor] = {}
    largest = _largest_over(world, "dp")

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = RMSNorm(DIM, 1e-5)
            self.gate = Linear8(DIM, HIDDEN, largest, cache, "gate")
            key = "gate" if wrong and not world.single else "up"
            self.up = Linear8(DIM, HIDDEN, largest, cache, key)
            self.down = Linear8(HIDDEN, DIM, largest, cache, "down")

        def forward(self, x):
            h = self.norm(x)
            return x + self.down(F.silu(self.gate(h)) * self.up(h))

    model = world.parameters(Model())
    x, y = batch(world, dp=0)
    loss = F.mse_loss(model(x), y)
    loss.backward()
    reduced(world, model, "dp", divide=world.size)
    update(model)
    return loss


def fp8_norm_scaled(world, wrong=False):
    """With tp, cp and FP8, the gradient of a norm is multiplied by the size of tp."""
    tp, cp = world.mesh("tp").size(), world.mesh("cp").size()
    largest = _largest_over(world, "tp", "cp")
    up = Linear8(DIM, HIDDEN // tp, largest)
    down = Linear8(HIDDEN // tp, DIM, largest)
    model = MLP(up, down)
    group = world.group("tp")

    def forward(x):
        h = megatron.CopyToGroup.apply(model.norm(x), group)
        return x + megatron.ReduceFromGroup.apply(down(F.silu(up(h))), group)

    model.forward = forward
    world.parameters(model, {"up.weight": {"tp": 0}, "down.weight": {"tp": 1}, "norm.weight": {}})
    x, y = batch(world, cp=1)
    loss = F.mse_loss(model(x), y)
    loss.backward()
    reduced(world, model, "cp", divide=cp)
    if wrong:
        model.norm.weight.grad *= tp
    update(model)
    return loss


@dataclasses.dataclass(frozen=True)
class Bug:
    """axes: of the ranks, each of size 2. named: what an isolated run names, as its first. also:
    what it may name beside that.
    """

    step: Callable[..., Any]
    axes: tuple[str, ...]
    named: str
    also: tuple[str, ...] = ()


GRADIENTS = "the loss, or the reduction of gradients"
OPTIMIZER = "the optimizer"
MODEL = "the model itself, or the step around it"
BUGS = [
    Bug(embedding_mask, ("tp",), "embedding"),
    Bug(stale_recompute_input, ("dp",), "0.norm", ("0.up", "0.down")),
    Bug(loss_scale_context_parallel, ("cp",), GRADIENTS),
    Bug(loss_scale_data_parallel, ("dp",), GRADIENTS),
    Bug(untied_under_zero, ("dp",), OPTIMIZER),
    Bug(router_not_synchronised, ("tp",), "router"),
    Bug(fp8_scale_group, ("dp", "tp"), "up"),
    Bug(fp8_wrong_tensor, ("dp",), "up"),
    Bug(update_lost_under_zero, ("dp",), OPTIMIZER),
    Bug(stage_division, ("pp",), "layer1.norm", ("layer1.up", "layer1.down", MODEL)),
    Bug(gradient_overwritten, ("dp",), "up", ("down",)),
    Bug(norm_not_synchronised, ("tp",), "norm"),
    Bug(gradient_not_contiguous, ("dp",), "down"),
    Bug(fp8_norm_scaled, ("tp", "cp"), "norm"),
]
