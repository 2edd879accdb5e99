# SPDX-License-Identifier: Apache-2.0
"""Collectives and messages: from c10d and the functional collectives to the format's communication.

A flat buffer of several tensors is sent as its tensors (flat_buffers.py), one communication each.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from ..compat import private
from ..terms import arithmetic as ar
from ..terms import assumptions
from ..terms.geometry import geometry_of
from ..terms.values import (
    Complex,
    Filled,
    Known,
    NotFollowed,
    Poison,
    Poisoned,
    Reason,
    Unsupported,
    Value,
    kind_of,
)
from .exchange import Exchange, Groups
from .flat_buffers import (
    all_reduce_in_place,
    chunk_cat_into,
    copy_in,
    gather_into,
    scatter_into,
    split_into,
    write_flat,
)

NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "fsdp", "_dtensor")


class NotSent(NotFollowed):
    """A tensor is sent of which it is not known what it holds. reason: why, where that is known."""

    reason: Reason | None = None


def dispatch(recorder: Any, name: str, func: Any, args: Any, kwargs: Any) -> Any:
    """Runs one of these operators on the fake tensors and records it.

    What it writes is poison where it has no translation. Raises NotSent for a message that is
    poison.
    """
    handler = _HANDLERS.get(name)
    touched = private.tensors(args, kwargs)
    if recorder.issued is not None and name.startswith("c10d."):
        for i, operand in enumerate(args):
            writes = i == 0 and name != "c10d.send"
            recorder.issued += [
                (t, name[len("c10d.") :].strip("_"), writes) for t in private.tensors(operand)
            ]
    if name in ("c10d.send", "c10d.recv_") and not all(t.is_contiguous() for t in touched):
        # as all backends do
        raise RuntimeError(f"{name[len('c10d.') :].strip('_')}: a tensor has to be contiguous")
    # fake: shapes only; what is recorded is read and written here
    out = recorder.fake(func, args, kwargs)
    recorder.groups.under_way = ""
    try:
        with private.outside():
            _check_layout(name, args)
            recorder.groups.sent = tuple(sorted({str(t.dtype) for t in touched}))
            _handle(recorder, name, handler, args, kwargs, out)
    except Exception as e:  # whatever goes wrong: what it would have written is not known
        reason = e.reason if isinstance(e, Poisoned) else Reason(f"{name}: {e}", recorder.g.loc)
        # nothing is written here: what the other rank receives is not known
        if name == "c10d.send":
            error = NotSent(
                f"what is sent cannot be followed: {reason.text}"
                + (f" at {reason.loc}" if reason.loc else "")
            )
            error.reason = reason
            raise error from None
        recorder.unknown.setdefault(reason.text, reason.loc)
        recorder.groups.not_followed(
            f"{reason.text} (at {reason.loc})" if reason.loc else reason.text
        )
        results = private.tensors(out)
        written = touched if name.startswith(("c10d.", "fsdp.")) else []
        for t in [*results, *written]:
            recorder.write(t, Poison(t.shape, reason))
    return out


# of dense tensors, each element with the one at the same offset (Exchange.by_memory)
_ONE_BY_ONE = frozenset({"c10d.allreduce_", "c10d.reduce_", "c10d.broadcast_"})
# to and from memory of the backend's own
_COPIED = frozenset({"c10d.allgather_", "c10d.gather_", "c10d.alltoall_"})


def _check_layout(name: str, args: Any) -> None:
    """Raises Unsupported for tensors that are not contiguous, where a backend goes by their memory.

    gloo sends them in the order of memory, so that they arrive in another order; NCCL mostly
    refuses them.
    """
    if not name.startswith("c10d."):
        return
    if name == "c10d._allgather_base_":
        args = args[:1]  # what is sent is copied where it has to be
    strided = [t for t in private.tensors(args) if not t.is_contiguous()]
    if (
        not strided
        or name in _COPIED
        or name in _ONE_BY_ONE
        and all(geometry_of(t).is_dense() for t in strided)
    ):
        return
    raise Unsupported(
        "a tensor that is not contiguous, which a backend takes in the order of memory or refuses "
        "(.contiguous() makes one that is)"
    )


def _handle(recorder: Any, name: str, handler: Any, args: Any, kwargs: Any, out: Any) -> None:
    if handler is None:
        raise Unsupported("no line in the table of collectives")
    if name == "fsdp.split_with_sizes_copy":
        split_into(
            recorder,
            args[0],
            args[1],
            args[2] if len(args) > 2 else kwargs.get("dim", 0),
            kwargs["out"],
        )
    elif handler is chunk_cat_into:
        chunk_cat_into(recorder, args[0], args[1], args[2], kwargs["out"])
    else:
        handler(recorder, args, out)


def _c10d_all_reduce(recorder: Any, args: Any, out: Any) -> None:
    exchange = Exchange(recorder, private.group_ranks(args[1]))
    exchange.by_memory(args[0], "all_reduce")
    for t in args[0]:
        all_reduce_in_place(recorder, t, exchange.ranks, private.reduction_name(), exchange)


def _c10d_all_gather_base(recorder: Any, args: Any, out: Any) -> None:
    gather_into(recorder, args[0], args[1], Exchange(recorder, private.group_ranks(args[2])))


def _moved(recorder: Any, exchange: Exchange, t: torch.Tensor) -> Value:
    """What a rank gives to others as it is. Memory that it has never written, as where a list is
    padded to the number of ranks, holds any numbers: an input that the single device does not have.
    What depends on them cannot be what it computes.
    """
    v: Value = recorder.read(t)
    if exchange.size > 1 and isinstance(v, Poison) and v.reason.hazard:
        g = recorder.g
        v = g.declare(f"%unwritten.{len(g.tensors)}", tuple(t.shape), _kind(t), "input")
        recorder.write(t, v)
    return v


def _c10d_all_gather(recorder: Any, args: Any, out: Any) -> None:
    """Lists of tensors. Owners broadcast those of unequal shapes, which NCCL takes."""
    ranks = private.group_ranks(args[2])
    exchange = Exchange(recorder, ranks)
    for targets, source in zip(args[0], args[1]):
        v = _moved(recorder, exchange, source)
        g = recorder.g
        if len({tuple(t.shape) for t in targets}) > 1:
            for root, t in zip(ranks, targets):
                mine = recorder.groups.rank == root
                write_flat(
                    recorder,
                    t,
                    _broadcast(
                        recorder, exchange, root, v if mine else None, tuple(t.shape), _kind(t)
                    ),
                )
            continue
        whole = exchange.all_gather(g.reshape(v, (1,) + v.shape) if exchange.size > 1 else v)
        whole = g.reshape(whole, (exchange.size,) + v.shape)
        for i, t in enumerate(targets):
            write_flat(recorder, t, g.slice(whole, 0, i, i + 1))


def _c10d_reduce_scatter_base(recorder: Any, args: Any, out: Any) -> None:
    scatter_into(
        recorder,
        args[0],
        args[1],
        Exchange(recorder, private.group_ranks(args[2])),
        private.reduction_name(),
    )


def _c10d_reduce_scatter(recorder: Any, args: Any, out: Any) -> None:
    """Lists of tensors. Those of unequal shapes, which NCCL takes, are reduced one by one."""
    ranks = private.group_ranks(args[2])
    exchange = Exchange(recorder, ranks)
    g = recorder.g
    for target, sources in zip(args[0], args[1]):
        values = [recorder.read(t) for t in sources]
        ar.check(*values)
        if len({v.shape for v in values}) > 1:
            for rank, reduced in zip(
                ranks, [exchange.all_reduce(v, private.reduction_name()) for v in values]
            ):
                if rank == recorder.groups.rank:
                    write_flat(recorder, target, reduced)
            continue
        whole = g.cat([g.reshape(v, (1,) + v.shape) for v in values], 0)
        write_flat(recorder, target, exchange.reduce_scatter(whole, private.reduction_name()))


def _coalesced_gather(recorder: Any, args: Any, out: Any) -> None:
    exchange = Exchange(recorder, private.group_ranks(args[2]))
    for target, source in zip(args[0], args[1]):
        gather_into(recorder, target, source, exchange)


def _coalesced_scatter(recorder: Any, args: Any, out: Any) -> None:
    exchange = Exchange(recorder, private.group_ranks(args[2]))
    for target, source in zip(args[0], args[1]):
        scatter_into(recorder, target, source, exchange, private.reduction_name())


def _root(recorder: Any, ranks: tuple[int, ...], index: int) -> int:
    """The rank that a group counts as `index`.

    On the single device it is that device, whichever the program names.
    """
    if recorder.groups.mesh.world == 1 and index:
        recorder.g.assume(assumptions.other_root(index, recorder.g.loc))
        index = 0
    return ranks[index]


def _c10d_broadcast(recorder: Any, args: Any, out: Any) -> None:
    ranks = private.group_ranks(args[1])
    exchange = Exchange(recorder, ranks)
    exchange.by_memory(args[0], "broadcast")
    root = _root(recorder, ranks, args[2])
    for t in args[0]:
        if t.numel() == 0:
            continue  # what a library has freed: nothing is sent
        mine = recorder.groups.rank == root
        if exchange.size > 1 and recorder.groups.constants.broadcasts_infinite(
            f"{exchange.comm} {exchange.parts}", root, recorder.read(t)
        ):
            exchange.parts += 1
            continue
        v = _moved(recorder, exchange, t) if mine or exchange.size == 1 else None
        if not t.is_complex():
            key = ("drawn", exchange.comm, exchange.parts, root) if exchange.size > 1 else ()
            if mine and key:
                recorder.drawn.give(t, recorder.groups.mailbox, key)
            recorder.write(t, _broadcast(recorder, exchange, root, v, tuple(t.shape), _kind(t)))
            if not mine and key:
                recorder.drawn.take(t, recorder.groups.mailbox, key)
            continue
        if v is not None and not isinstance(v, Complex):
            ar.check(v)
            raise Unsupported("a real value in a complex tensor")
        parts = [
            _broadcast(recorder, exchange, root, part, tuple(t.shape), "real")
            for part in ((v.real, v.imag) if v is not None else (None, None))
        ]
        recorder.write(t, Complex(*parts))


def _broadcast(
    recorder: Any,
    exchange: Exchange,
    root: int,
    given: Value | None,
    shape: tuple[int, ...],
    kind: str,
) -> Value:
    sent = given
    if isinstance(given, Known) and exchange.size > 1:
        sent = Known(given.data)  # all have the root's: that is no array of a rank's own
    return _received_constants(
        recorder, exchange, root, given, exchange.broadcast(sent, root, shape, kind)
    )


def _received_constants(
    recorder: Any, exchange: Exchange, root: int, given: Value | None, result: Value
) -> Value:
    """Constants that are sent (a module's buffers) are these constants on the receiving rank, also
    beside others in one flat tensor.

    The root's recording has their numbers.
    """
    if exchange.size == 1:
        return result
    g, key = recorder.g, (exchange.comm, exchange.parts, root)
    mailbox = recorder.groups.mailbox
    if given is not None:
        parts = g.parts(given)
        if any(isinstance(v, (Filled, Known)) for v in parts):
            mailbox[key] = [(v.shape, v if isinstance(v, (Filled, Known)) else None) for v in parts]
        return result
    sent = mailbox.get(key)
    if sent is None:
        return result
    if len(sent) == 1:
        return sent[0][1] if sent[0][0] == result.shape else result
    if any(shape[1:] != result.shape[1:] for shape, _ in sent):
        return result
    ends = list(itertools.accumulate(shape[0] for shape, _ in sent))
    if ends[-1] != result.shape[0]:
        return result
    pieces = [
        v if v is not None else g.slice(result, 0, start, end)
        for start, end, (_, v) in zip([0, *ends], ends, sent)
    ]
    joined: Value = g.cat(pieces, 0)
    return joined


def _kind(t: torch.Tensor) -> str:
    kind = kind_of(t.dtype)
    if kind == "complex":
        raise Unsupported("communication of complex tensors")
    return kind


def _c10d_scatter(recorder: Any, args: Any, out: Any) -> None:
    """The root's pieces go to all; each takes its own."""
    ranks = private.group_ranks(args[2])
    exchange = Exchange(recorder, ranks)
    root, me = _root(recorder, ranks, args[3]), ranks.index(recorder.groups.rank)
    g = recorder.g
    for target, sources in zip(args[0], args[1] or [[]]):
        shape = tuple(target.shape)
        v: Value | None = None
        if recorder.groups.rank == root:
            values = [recorder.read(t) for t in sources]
            ar.check(*values)
            v = g.cat([g.reshape(x, (1,) + shape) for x in values], 0)
        whole = exchange.broadcast(v, root, (len(ranks),) + shape, _kind(target))
        write_flat(recorder, target, g.slice(whole, 0, me, me + 1))


def _c10d_gather(recorder: Any, args: Any, out: Any) -> None:
    """All get what one wants."""
    exchange = Exchange(recorder, private.group_ranks(args[2]))
    for i, source in enumerate(args[1]):
        v = recorder.read(source)
        whole = recorder.g.reshape(
            exchange.all_gather(recorder.g.reshape(v, (1,) + v.shape)), (exchange.size,) + v.shape
        )
        for k, t in enumerate(args[0][i] if args[0] else []):
            write_flat(recorder, t, recorder.g.slice(whole, 0, k, k + 1))


def _c10d_reduce(recorder: Any, args: Any, out: Any) -> None:
    """The root gets the sum; what the others have then is undefined."""
    ranks = private.group_ranks(args[1])
    exchange = Exchange(recorder, ranks)
    exchange.by_memory(args[0], "reduce")
    for t in args[0]:
        v = exchange.all_reduce(recorder.read(t), private.reduction_name())
        mine = recorder.groups.rank == _root(recorder, ranks, args[3])
        recorder.write(
            t,
            v
            if mine
            else Poison(
                t.shape,
                Reason(
                    "what dist.reduce leaves on a rank that is not its destination is read",
                    recorder.g.loc,
                ),
            ),
        )


def _rows(
    recorder: Any,
    exchange: Exchange,
    out: torch.Tensor,
    source: torch.Tensor,
    received: Sequence[int] | None,
    sent: Sequence[int] | None,
) -> Value:
    """An all-to-all of so many rows from and to each member; None or none: of equal pieces."""
    v = recorder.read(source)
    for sizes, t in ((received, out), (sent, source)):
        if sizes and sum(sizes) != t.shape[0]:
            raise Unsupported(
                f"an all-to-all of pieces of {', '.join(str(int(n)) for n in sizes)} rows, of a "
                f"tensor of {t.shape[0]}"
            )
    if exchange.size == 1 or len({int(n) for n in received or ()}) <= 1 >= len(
        {int(n) for n in sent or ()}
    ):
        made = exchange.all_to_all(v)
        received_counts: Value = recorder.rows.counts_sent(v, made, exchange)
        return received_counts
    ar.check(v)
    g, n = exchange.g, exchange.size
    shapes = [(int(k),) + tuple(v.shape[1:]) for k in received or [out.shape[0] // n] * n]
    ends = list(itertools.accumulate(int(k) for k in sent or [v.shape[0] // n] * n))
    pieces = [
        g.slice(v, 0, start, end) if end > start else Filled(0, (0,) + v.shape[1:])
        for start, end in zip([0, *ends], ends)
    ]
    parts = exchange.uneven_all_to_all(pieces, shapes, _kind(source))
    return g.cat([p for p in parts if p.shape[0]] or parts[:1], 0)


def exchange_rows(
    recorder: Any,
    out: torch.Tensor | None,
    source: torch.Tensor,
    received: Any,
    sent: Any,
    group: Any,
) -> torch.Tensor:
    """An all-to-all of numbers of rows that depend on data."""
    with recorder.here(), torch._C.DisableTorchFunction(), private.outside():
        exchange = Exchange(recorder, private.group_ranks(group))
        made: torch.Tensor = recorder.rows.exchange(out, source, received, sent, exchange)
    return made


def _c10d_all_to_all_base(recorder: Any, args: Any, out: Any) -> None:
    recorder.write(
        args[0],
        _rows(
            recorder,
            Exchange(recorder, private.group_ranks(args[2])),
            args[0],
            args[1],
            args[3],
            args[4],
        ),
    )


def _c10d_all_to_all(recorder: Any, args: Any, out: Any) -> None:
    exchange = Exchange(recorder, private.group_ranks(args[2]))
    g = recorder.g
    if any(not t.is_contiguous() for t in args[0]):
        g.assume(assumptions.GATHERED)
    values = [recorder.read(t) for t in args[1]]
    ar.check(*values)
    if len({v.shape for v in values}) != 1 or len({tuple(t.shape) for t in args[0]}) != 1:
        for t, v in zip(
            args[0],
            exchange.uneven_all_to_all(
                values, [tuple(t.shape) for t in args[0]], _kind(args[1][0])
            ),
        ):
            write_flat(recorder, t, v)
        return
    whole = exchange.all_to_all(g.cat([g.reshape(v, (1,) + v.shape) for v in values], 0))
    for i, t in enumerate(args[0]):
        write_flat(recorder, t, g.slice(whole, 0, i, i + 1))


def _message(recorder: Any, source: int, target: int, group: tuple[int, ...]) -> str:
    """Messages meet in the order in which they are sent, in each group for itself."""
    which = getattr(group, "which", 0)
    among = (
        "" if len(group) == recorder.groups.mesh.world else " among " + ",".join(map(str, group))
    )
    groups: Groups = recorder.groups
    return groups.next(
        f"message {source} to {target}{among}" + (f" again {which}" if which else "")
    )


def _send(recorder: Any, t: torch.Tensor, target: int, group: tuple[int, ...], tag: int) -> None:
    groups: Groups = recorder.groups
    n = recorder.g.named(recorder.read(t))
    comm = _message(recorder, groups.rank, target, group)
    groups.meets(comm, (groups.rank, target), "send", recorder.g.loc, tag)
    recorder.g.emit("send", [n], [], comm=comm, to=groups.mesh.relative(groups.rank, target))


def _recv(recorder: Any, t: torch.Tensor, source: int, group: tuple[int, ...], tag: int) -> None:
    groups: Groups = recorder.groups
    kind = _kind(t)
    comm = _message(recorder, source, groups.rank, group)
    groups.meets(comm, (source, groups.rank), "recv", recorder.g.loc, tag)
    n = recorder.g.one(
        "recv",
        [],
        tuple(t.shape),
        None,
        kind,
        comm=comm,
        **{"from": groups.mesh.relative(groups.rank, source)},
    )
    if kind != "real":
        recorder.g.tensors[n.name]["dtype"] = "int64"
    recorder.write(t, n)


def _tag(args: Any) -> int:
    """The tag of a message.

    NCCL pairs messages in the order in which they are sent, gloo by tags. Both are the same where
    the tags are, which capture.py compares.
    """
    return args[3] or 0 if len(args) > 3 else 0


def _c10d_send(recorder: Any, args: Any, out: Any) -> None:
    ranks = private.group_ranks(args[1])
    for t in args[0]:
        _send(recorder, t, ranks[args[2]], ranks, _tag(args))


def _c10d_recv(recorder: Any, args: Any, out: Any) -> None:
    ranks = private.group_ranks(args[1])
    for t in args[0]:
        _recv(recorder, t, ranks[args[2]], ranks, _tag(args))


def _barrier(recorder: Any, args: Any, out: Any) -> None:
    """Nobody goes on before all are there: a sum of zeros that is not read."""
    exchange = Exchange(recorder, private.group_ranks(args[1]))
    if exchange.size > 1:
        exchange.all_reduce(Filled(0, ()), ("sum", None))
    if exchange.size == recorder.groups.mesh.world:
        recorder.groups.barriers += 1


def order_batch(recorder: Any, start: int) -> None:
    """Lists the messages of one batch in an order that is the same on all ranks.

    They wait for each other in no order.
    """
    nodes = recorder.g.nodes
    batch: list[dict[str, Any]] = []
    rest: list[dict[str, Any]] = []
    for node in nodes[start:]:
        (batch if node["op"] in ("send", "recv") else rest).append(node)

    def key(node: dict[str, Any]) -> tuple[int, int, int]:
        _, a, _, b, *_ = node["comm"].split()
        return min(int(a), int(b)), max(int(a), int(b)), int(a)

    nodes[start:] = [*rest, *sorted(batch, key=key)]


# ---- functional collectives: results are new tensors, read after wait_tensor ----
def _asynchronous(
    handler: Any,
    name: str = "collective",
    written: Any = lambda args, out: out,
    reads: bool = False,
) -> Any:
    """What the handler records is under way until wait_tensor of its result.

    reads: it reads its operand itself until then. PyTorch clones the operands of the others.
    """

    def f(recorder: Any, args: Any, out: Any) -> None:
        start = len(recorder.g.nodes)
        handler(recorder, args, out)
        t = written(args, out)
        if reads and private.storage_key(args[0]) != private.storage_key(t):
            recorder.sending(args[0], name, private.storage_key(t))
        recorder.pend(t, name, private.storage_key(t))
        recorder.begun.begin(private.storage_key(t), start)

    return f


def _functional(make: Any) -> Any:
    def f(recorder: Any, args: Any, out: Any) -> None:
        recorder.write(out, recorder.g.reshape(make(recorder, args), tuple(out.shape)))

    return _asynchronous(f)


def _f_all_gather(recorder: Any, args: Any, out: Any) -> None:
    gather_into(recorder, out, args[0], Exchange(recorder, private.group_ranks(args[2])))


def _f_reduce_scatter(recorder: Any, args: Any, out: Any) -> None:
    scatter_into(
        recorder,
        out,
        args[0],
        Exchange(recorder, private.group_ranks(args[3])),
        (args[1].lower(), None),
    )


def _f_all_to_all(recorder: Any, args: Any, out: Any) -> None:
    recorder.write(
        out,
        _rows(
            recorder,
            Exchange(recorder, private.group_ranks(args[3])),
            out,
            args[0],
            args[1],
            args[2],
        ),
    )


def _f_broadcast(recorder: Any, args: Any) -> Value:
    ranks = private.group_ranks(args[2])
    exchange = Exchange(recorder, ranks)
    t = args[0]
    root = _root(recorder, ranks, args[1])
    return exchange.broadcast(
        recorder.read(t) if recorder.groups.rank == root or exchange.size == 1 else None,
        root,
        tuple(t.shape),
        _kind(t),
    )


def _f_all_reduce_in_place(recorder: Any, args: Any, out: Any) -> None:
    exchange = Exchange(recorder, private.group_ranks(args[2]))
    exchange.by_memory([args[0]], "all_reduce")
    all_reduce_in_place(recorder, args[0], exchange.ranks, (args[1].lower(), None), exchange)


def _wait(recorder: Any, args: Any, out: Any) -> None:
    recorder.finish(private.storage_key(args[0]))
    recorder.begun.wait(private.storage_key(args[0]))
    if private.storage_key(out) != private.storage_key(args[0]):
        recorder.write(out, recorder.read(args[0]))


def _same_tensor(recorder: Any, args: Any, out: Any) -> None:
    if private.storage_key(out) != private.storage_key(args[0]):
        s = recorder._storage(args[0])
        pending, s.pending = s.pending, {}
        recorder.write(out, recorder.read(args[0]))
        s.pending = pending
        if pending:
            recorder.pend(out, "collective", private.storage_key(out))
            recorder.also(private.storage_key(out), private.storage_key(args[0]))
            recorder.begun.also(private.storage_key(out), private.storage_key(args[0]))


def _shard_dim_all_to_all(recorder: Any, args: Any, out: Any) -> None:
    exchange = Exchange(recorder, private.group_ranks(args[3]))
    n = len(args[0].shape)
    recorder.write(
        out, exchange.all_to_all(recorder.read(args[0]), idim=args[2] % n, odim=args[1] % n)
    )


def _each_of(handler: Any) -> Any:
    def f(recorder: Any, args: Any, out: Any) -> None:
        for t, o in zip(args[0], out):
            handler(recorder, (t, *args[1:]), o)

    return f


_HANDLERS: dict[str, Any] = {
    "c10d.allreduce_": _c10d_all_reduce,
    "c10d.allreduce_coalesced_": _c10d_all_reduce,
    "c10d._allgather_base_": _c10d_all_gather_base,
    "c10d.allgather_": _c10d_all_gather,
    "c10d._reduce_scatter_base_": _c10d_reduce_scatter_base,
    "c10d.reduce_scatter_": _c10d_reduce_scatter,
    "c10d.allgather_into_tensor_coalesced_": _coalesced_gather,
    "c10d.reduce_scatter_tensor_coalesced_": _coalesced_scatter,
    "c10d.broadcast_": _c10d_broadcast,
    "c10d.scatter_": _c10d_scatter,
    "c10d.gather_": _c10d_gather,
    "c10d.reduce_": _c10d_reduce,
    "c10d.alltoall_base_": _c10d_all_to_all_base,
    "c10d.alltoall_": _c10d_all_to_all,
    "c10d.send": _c10d_send,
    "c10d.recv_": _c10d_recv,
    "c10d.barrier": _barrier,
    "fsdp.all_gather_copy_in": copy_in,
    "fsdp.split_with_sizes_copy": split_into,
    "fsdp.chunk_cat": chunk_cat_into,
    "fsdp.chunk_cat_mixed_dtype": chunk_cat_into,  # since torch 2.15, also of several dtypes
    "fsdp.copy_": lambda recorder, args, out: (
        recorder.flat_copies.copy(args[0], args[1])
        or recorder.write(args[0], recorder.read(args[1]))
    ),
    "_dtensor.shard_dim_alltoall": _shard_dim_all_to_all,
}
for _space in ("_c10d_functional", "_c10d_functional_autograd"):
    _reduce = _functional(
        lambda r, a: Exchange(r, private.group_ranks(a[2])).all_reduce(
            r.read(a[0]), (a[1].lower(), None)
        )
    )
    _gather, _scatter = (
        _asynchronous(_f_all_gather, "all_gather", reads=True),
        _asynchronous(_f_reduce_scatter, "reduce_scatter", reads=True),
    )
    _HANDLERS.update(
        {
            f"{_space}.all_reduce": _reduce,
            f"{_space}.all_reduce_coalesced": _each_of(_reduce),
            f"{_space}.all_reduce_": _asynchronous(
                _f_all_reduce_in_place, "all_reduce", lambda args, out: args[0]
            ),
            f"{_space}.all_gather_into_tensor": _gather,
            f"{_space}.all_gather_into_tensor_coalesced": _each_of(_gather),
            f"{_space}.reduce_scatter_tensor": _scatter,
            f"{_space}.reduce_scatter_tensor_coalesced": _each_of(_scatter),
            f"{_space}.all_to_all_single": _asynchronous(_f_all_to_all, "all_to_all", reads=True),
            f"{_space}.broadcast": _functional(_f_broadcast),
            f"{_space}.wait_tensor": _wait,
            f"{_space}._wrap_tensor_autograd": _same_tensor,
        }
    )
