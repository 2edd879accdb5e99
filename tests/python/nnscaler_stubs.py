# SPDX-License-Identifier: Apache-2.0
"""Pickles of small execution plans, made without nnScaler.

Classes of nnScaler's names have the attributes that its pickles have. Only while a pickle is made
are they in modules of nnScaler's names.
"""

import contextlib
import pickle
import sys
import types

import torch

_MODULES = {
    "nnscaler.codegen.module.module": ["ModuleCodeGen"],
    "nnscaler.execplan.execplan": ["ExecutionPlan", "ExeReuseCell"],
    "nnscaler.graph.function.dimops": ["IRDimops"],
    "nnscaler.graph.segment": ["IRSegment"],
    "nnscaler.ir.adapter.adapter": ["IRAdapter", "IRWeightReducer"],
    "nnscaler.ir.adapter.prim": [
        *("AllGatherPrim", "AllGatherSplitPrim", "AllReduceIdentityPrim", "ChunkPrim", "MovePrim"),
        "SplitAllGatherPrim",
    ],
    "nnscaler.ir.cten": ["IRObject"],
    "nnscaler.ir.operator": ["IRBpOperation", "IRDataOperation"],
    "nnscaler.ir.tensor": ["IRFullTensor", "IRSubTensor", "IndexMap", "ValueMap"],
}
_CLASSES = {
    name: type(name, (), {"__module__": module, "__qualname__": name})
    for module, names in _MODULES.items()
    for name in names
}


def made(kind, **attributes):
    x = _CLASSES[kind]()
    x.__dict__.update(attributes)
    return x


@contextlib.contextmanager
def importable():
    """Inside, the modules of the classes are there, as where nnScaler is installed."""
    before = dict(sys.modules)
    for module, names in _MODULES.items():
        parts = module.split(".")
        for i in range(len(parts)):
            sys.modules.setdefault(".".join(parts[: i + 1]), types.ModuleType(parts[i]))
        for name in names:
            setattr(sys.modules[module], name, _CLASSES[name])
    try:
        yield
    finally:
        for module in [m for m in sys.modules if m not in before]:
            del sys.modules[module]


def dumped(x):
    with importable():
        return pickle.dumps(x, protocol=4)


class Builder:
    """Numbers tensors and cells as nnScaler does."""

    def __init__(self):
        self.next = 0
        self.parts = {}

    def number(self):
        self.next += 1
        return self.next

    def full(self, name, shape, *, attribute=False, loss=False, trained=True, dtype=torch.float32):
        """A full tensor and, if trained, that of its gradient."""

        def one(name, gradient):
            return made(
                "IRFullTensor",
                _id=self.number(),
                name=name,
                _shape=shape,
                _dtype=dtype,
                _is_attr=attribute,
                _is_grad=gradient,
                _is_loss=loss,
                _grad=None,
            )

        found = one(name, False)
        if trained:
            found._grad = one(f"g{name}", True)
        return found

    def part(self, full, box=None, term=(0, 1), gradient_term=(0, 1)):
        """A part of a full tensor. The same part is one tensor."""
        box = tuple(box or ((0, n) for n in full._shape))
        key = (full._id, box, term, gradient_term)
        if key not in self.parts:
            gradient = full._grad and self.part(full._grad, box, gradient_term)
            self.parts[key] = made(
                "IRSubTensor",
                _id=self.number(),
                _full_tensor=full,
                _indmap=made("IndexMap", _indices=box),
                _valmap=made("ValueMap", _weight=term),
                _grad=gradient,
            )
        return self.parts[key]

    def cell(self, kind, inputs=(), outputs=(), **attributes):
        return made(
            kind, _id=self.number(), _inputs=list(inputs), _outputs=list(outputs), **attributes
        )

    def operator(self, name, inputs, outputs, **keywords):
        """A forward operator and its backward."""
        forward = self.cell(
            "IRDimops", inputs, outputs, name=name, signature=f"torch.{name}", _kwargs=keywords
        )
        backward = self.cell(
            "IRBpOperation",
            [t._grad for t in outputs if t._grad],
            [t._grad for t in inputs if t._grad],
            name="backward",
            _mirror=forward,
        )
        forward._mirror = backward
        return forward, backward

    def fused(self, kind, source, target, **keywords):
        """Forward and backward adapter with one primitive that has both directions."""
        primitive = made(kind, _inputs=[source], _outputs=[target], kwargs=keywords)
        forward = self.cell(
            "IRAdapter", [source], [target], name="adapter", _prims=[primitive], _forward=True
        )
        backward = self.cell(
            "IRAdapter",
            [target._grad],
            [source._grad],
            name="adapter",
            _prims=[primitive],
            _forward=False,
        )
        return forward, backward

    def segments(self, pairs):
        """Forward and backward segment of such pairs."""
        forward = self.cell("IRSegment", name="segment", _nodes=[f for f, _ in pairs])
        backward = self.cell("IRSegment", name="segment", _nodes=[b for _, b in pairs[::-1]])
        return forward, backward

    def reused(self, cell, outputs, mirror=None, number=None):
        """One execution of a cell, with tensors of its microbatch in the place of its outputs."""
        made_by = made(
            "ExeReuseCell",
            _id=number or self.number(),
            _cell=cell,
            _inputs=[],
            _outputs=outputs,
            _mirror=mirror,
        )
        if mirror is not None:
            mirror._mirror = made_by
        return made_by


def plan(sequences, replicas=1):
    devices = tuple(range(len(sequences)))
    return made(
        "ModuleCodeGen",
        devices=devices,
        runtime_ndevs=len(devices) * replicas,
        enable_dp=replicas > 1,
        execplan=made("ExecutionPlan", _seq=dict(enumerate(sequences))),
    )


BATCH, WIDTH, OUT = 8, 4, 6


def single():
    """loss = sum(relu(x w1) w2) on one device."""
    b = Builder()
    x = b.part(b.full("data", (BATCH, WIDTH), trained=False))
    w1 = b.part(b.full("first.weight", (OUT, WIDTH), attribute=True))
    w2 = b.part(b.full("second.weight", (WIDTH, OUT), attribute=True))
    h, a = (b.part(b.full(n, (BATCH, OUT))) for n in ("h", "a"))
    y = b.part(b.full("y", (BATCH, WIDTH)))
    loss = b.part(b.full("sum", (1,), loss=True))
    forward, backward = b.segments(
        [
            b.operator("linear", [x, w1], [h], bias=None),
            b.operator("relu", [h], [a], inplace=False),
            b.operator("linear", [a, w2], [y], bias=None),
            b.operator("sum", [y], [loss]),
        ]
    )
    data = b.cell("IRDataOperation", [], [x], name="dataloader")
    return plan([[data, forward, backward]])


def parallel(*bugs, replicas=2, microbatches=2):
    """Both layers in tensor parallel on 2 devices, for all replicas and microbatches."""
    b = Builder()
    rows = BATCH // replicas // microbatches
    full_x = b.full("data", (rows, WIDTH), trained=False)
    full_w1 = b.full("first.weight", (OUT, WIDTH), attribute=True)
    full_w2 = b.full("second.weight", (WIDTH, OUT), attribute=True)
    full_h, full_a = b.full("h", (rows, OUT)), b.full("a", (rows, OUT))
    full_y = b.full("y", (rows, WIDTH))
    full_loss = b.full("sum", (1,), loss=True)
    adapter, reducer = b.number(), b.number()
    runs = [(b.number(), b.number(), b.number()) for _ in range(microbatches)]
    others = [b.full("data", (rows, WIDTH), trained=False) for _ in range(microbatches)]
    sequences = []
    for d in range(2):
        half = OUT // 2
        low = (1 - d if "parts-swapped" in bugs else d) * half
        x = b.part(full_x)
        w1 = b.part(full_w1, ((low, low + half), (0, WIDTH)))
        w2 = b.part(full_w2, ((0, WIDTH), (d * half, d * half + half)))
        h, a = (b.part(f, ((0, rows), (d * half, d * half + half))) for f in (full_h, full_a))
        term = b.part(full_y, None, (d, 2))
        y = b.part(full_y)
        loss = b.part(full_loss)
        reduced = b.fused("AllReduceIdentityPrim", term, y, ranks=[1, 0])
        reduced[0]._id = adapter
        pairs = [
            b.operator("linear", [x, w1], [h], bias=None),
            b.operator("relu", [h], [a], inplace=False),
            b.operator("linear", [a, w2], [term], bias=None),
            reduced,
            b.operator("sum", [y], [loss]),
        ]
        if "no-reduction" in bugs:
            del pairs[3]
            pairs[3] = b.operator("sum", [term], [loss])
        forward, backward = b.segments(pairs)
        data = b.cell("IRDataOperation", [], [x], name="dataloader")
        cells = []
        order = list(range(microbatches))
        for m in order:
            own = x if m == 0 else b.part(others[m])
            run = b.reused(forward, [], number=runs[m][1])
            # A forward execution and its read of the data are of one microbatch by the tensor.
            run._inputs, forward._inputs = [own], [x]
            cells += [
                b.reused(data, [own], number=runs[m][0]),
                run,
                b.reused(backward, [], run, number=runs[m][2]),
            ]
        weights = [w1] if "weight-not-reduced" in bugs else [w1, w2]
        if "no-reducer" not in bugs:
            cells.append(
                made(
                    "IRWeightReducer",
                    _id=reducer + 1000 * d,
                    name="reducer",
                    _device=(0, 1) if "reduced-over-parts" in bugs else (d,),
                    _inputs=weights,
                )
            )
        sequences.append(cells)
    if "reduced-over-parts" in bugs:
        sequences[1][-1]._id = reducer
    return plan(sequences, replicas)


def gathered(swapped, ranks=None):
    """One replica of two devices: each computes half of h and gathers it. swapped: device 0 has the
    second half, so that ranks and annotations have the halves in another order. ranks: of a
    device, whom it gathers from, instead of both."""
    b = Builder()
    full_h = b.full("h", (BATCH, OUT))
    full_x = b.full("data", (BATCH, WIDTH), trained=False)
    full_w1 = b.full("first.weight", (OUT, WIDTH), attribute=True)
    full_w2 = b.full("second.weight", (WIDTH, OUT), attribute=True)
    full_a, full_y = b.full("a", (BATCH, OUT)), b.full("y", (BATCH, WIDTH))
    full_loss = b.full("sum", (1,), loss=True)
    adapter = b.number(), b.number()
    sequences = []
    for d in range(2):
        half = OUT // 2
        low = (1 - d if swapped else d) * half
        x, y, loss = b.part(full_x), b.part(full_y), b.part(full_loss)
        w1 = b.part(full_w1, ((low, low + half), (0, WIDTH)))
        w2 = b.part(full_w2)
        h = b.part(full_h, ((0, BATCH), (low, low + half)))
        whole, a = b.part(full_h), b.part(full_a)
        joined = b.fused("AllGatherSplitPrim", h, whole, dim=1, ranks=ranks(d) if ranks else [0, 1])
        joined[0]._id, joined[1]._id = adapter
        forward, backward = b.segments(
            [
                b.operator("linear", [x, w1], [h], bias=None),
                joined,
                b.operator("relu", [whole], [a], inplace=False),
                b.operator("linear", [a, w2], [y], bias=None),
                b.operator("sum", [y], [loss]),
            ]
        )
        data = b.cell("IRDataOperation", [], [x], name="dataloader")
        sequences.append([data, forward, backward])
    return plan(sequences)


def pipeline(*bugs):
    """The first layer on device 0, the second on device 1; the activation goes over in two halves,
    which device 1 joins in the order of its ranks."""
    b = Builder()
    x = b.part(b.full("data", (BATCH, WIDTH), trained=False))
    w1 = b.part(b.full("first.weight", (OUT, WIDTH), attribute=True))
    w2 = b.part(b.full("second.weight", (WIDTH, OUT), attribute=True))
    h, a = (b.part(b.full(n, (BATCH, OUT))) for n in ("h", "a"))
    y = b.part(b.full("y", (BATCH, WIDTH)))
    loss = b.part(b.full("sum", (1,), loss=True))
    first = b.segments(
        [
            b.operator("linear", [x, w1], [h], bias=None),
            b.operator("relu", [h], [a], inplace=False),
        ]
    )
    second = b.segments(
        [b.operator("linear", [a, w2], [y], bias=None), b.operator("sum", [y], [loss])]
    )
    data = b.cell("IRDataOperation", [], [x], name="dataloader")

    def moved(t, source, target, forward):
        number = b.number()
        keywords = {"shape": t._full_tensor._shape, "src": source, "dst": target}
        ends = []
        for inputs, outputs in (([t], []), ([], [t])):
            primitive = made("MovePrim", _inputs=inputs, _outputs=outputs, kwargs=keywords)
            ends.append(
                made(
                    "IRAdapter",
                    _id=number,
                    name="adapter",
                    _inputs=inputs,
                    _outputs=outputs,
                    _prims=[primitive],
                    _forward=forward,
                )
            )
        return ends

    there, back = moved(a, 0, 1, True), moved(a._grad, 1, 0, False)
    if "other-tensor-sent" in bugs:
        there[0]._prims[0]._inputs = [h]
        there[0]._prims[0].kwargs = there[1]._prims[0].kwargs
    zero = [data, first[0], there[0], back[1], first[1]]
    one = [there[1], second[0], second[1], back[0]]
    return plan([zero, one])
