# SPDX-License-Identifier: Apache-2.0
"""Layouts of checkpoints, compared by metadata."""

import itertools
import json
import os
import pathlib
import pickle
import random
import struct
import tempfile
import time
import types
import unittest

import torch
import torch.distributed.checkpoint as dcp
from shardproof import Layout, LayoutError, Part, verify_layout
from shardproof.layout import Piece, TensorLayout
from shardproof.layout.tiling import box, faults


def layout(name="target", **tensors):
    """name=(shape, [(offset, shape), ...])."""
    return Layout(
        {
            n.replace("__", "."): TensorLayout(
                shape, "float32", [Piece(o, s, f"piece {i}") for i, (o, s) in enumerate(pieces)]
            )
            for n, (shape, pieces) in tensors.items()
        },
        name,
    )


class Tiling(unittest.TestCase):
    def test_against_counting(self):
        """Random boxes: the first fault, and how many elements have one, by counting each."""
        draw = random.Random(1)
        right = 0
        for _ in range(400):
            shape = tuple(draw.randint(1, 5) for _ in range(draw.randint(0, 3)))
            boxes = []
            for i in range(draw.randint(0, 4)):
                ends = [sorted((draw.randint(0, n), draw.randint(0, n))) for n in shape]
                offset = [a for a, _ in ends]
                boxes.append(box(offset, [b - a for a, b in ends], str(i)))
            if draw.random() < 0.3 and shape:  # one that tiles
                cut = draw.randint(0, shape[0])
                rest = shape[1:]
                boxes = [
                    box((0,) * len(shape), (cut, *rest)),
                    box((cut, *(0,) * len(rest)), (shape[0] - cut, *rest)),
                ]
            wrong = []
            for index in itertools.product(*map(range, shape)):
                held = sum(all(a <= x < b for a, x, b in zip(q.low, index, q.high)) for q in boxes)
                if held != 1:
                    wrong.append(index)
            found = faults(box((0,) * len(shape), shape), boxes)
            self.assertEqual(len(wrong), sum(f.count for f in found))
            self.assertEqual(wrong[:1], [f.index for f in found[:1]])
            right += not wrong
        self.assertGreater(right, 50)

    def test_many(self):
        pieces = [box((i, 0), (1, 8)) for i in range(20000)]
        start = time.perf_counter()
        self.assertEqual([], faults(box((0, 0), (20000, 8)), pieces))
        found = faults(box((0, 0), (20000, 8)), pieces[:777] + pieces[778:])
        self.assertEqual([(777, 0)], [f.index for f in found])
        self.assertLess(time.perf_counter() - start, 10)


class Comparison(unittest.TestCase):
    source = Layout.whole({"a": ((4, 6), "float32"), "b": ((3,), "float32")}, "source")
    right = {
        "a": ((4, 6), [((0, 0), (2, 6)), ((2, 0), (2, 3)), ((2, 3), (2, 3))]),
        "b": ((3,), [((0,), (3,))]),
    }

    def differences(self, source=None, target=None, **options):
        report = verify_layout(source or self.source, target or layout(**self.right), **options)
        self.assertEqual(bool(report), not report.differences)
        return [f"{name}: {what}" for name, what in report.differences]

    def test_right(self):
        report = verify_layout(self.source, layout(**self.right))
        self.assertEqual(
            "EQUIVALENT: target has a place for each element of source, once: 27 elements of 2 "
            "tensors in 4 pieces",
            str(report),
        )

    def test_wrong(self):
        for message, change in {
            "a: target: element [0, 0] is in no piece (12 elements)": {
                "a": ((4, 6), self.right["a"][1][1:])
            },
            "a: target: element [2, 3] is twice in it: in piece 1 and piece 2 (2 elements)": {
                "a": ((4, 6), [((0, 0), (2, 6)), ((2, 0), (2, 4)), ((2, 3), (2, 3))])
            },
            "a: target: piece 2 has a piece at [2, 4] of shape [2, 3], outside of [4, 6]": {
                "a": ((4, 6), [((0, 0), (2, 6)), ((2, 0), (2, 3)), ((2, 4), (2, 3))])
            },
            "a: shape [6, 4], but a has [4, 6]": {"a": ((6, 4), [((0, 0), (6, 4))])},
            "c: source has no c": {"c": ((1,), [((0,), (1,))])},
        }.items():
            with self.subTest(message):
                self.assertEqual(message, self.differences(target=layout(**self.right | change))[0])

    def test_missing(self):
        target = layout(a=self.right["a"])
        self.assertEqual(
            ["b: no element of target is b[0] (3 elements)"], self.differences(target=target)
        )
        self.assertEqual([], self.differences(target=target, unused=["b"]))

    def test_dtype(self):
        source = Layout.whole({"a": ((4, 6), "float32"), "b": ((3,), "bfloat16")}, "source")
        self.assertEqual(["b: dtype float32, but b has bfloat16"], self.differences(source=source))
        self.assertEqual([], self.differences(source=source, cast=True))

    def test_names(self):
        other = {"a": "b", "b": "a"}
        swapped = Layout.whole({"b": ((4, 6), "float32"), "a": ((3,), "float32")}, "source")
        self.assertEqual([], self.differences(source=swapped, names=other))
        self.assertEqual([], self.differences(source=swapped, names=other.__getitem__))
        self.assertEqual(
            ["b: names has no entry for it", "a: no element of target is a[0] (3 elements)"],
            self.differences(source=swapped, names={"a": "b"}),
        )
        twice = layout(a=((3,), [((0,), (3,))]), c=((3,), [((0,), (3,))]))
        source = Layout.whole({"a": ((3,), "float32")}, "source")
        names = {"a": "a", "c": "a"}
        self.assertEqual(
            ["a: a[0] is in a and c (3 elements)"],
            self.differences(source=source, target=twice, names=names),
        )
        self.assertEqual(
            [],
            self.differences(source=source, target=twice, names=names, replicated=["a"]),
        )

    def test_parts(self):
        """Two matrices that are stacked, and a fused one."""
        source = Layout.whole(dict.fromkeys("abc", ((2, 3), "float32")), "source")
        target = layout(
            stack=((2, 2, 3), [((0, 0, 0), (2, 2, 3))]), rows=((2, 3), [((0, 0), (2, 3))])
        )

        def names(stack=("a", "b"), rows=((0, 1), (1, 0))):
            return {
                "stack": [Part(n, (i, 0, 0), (0, 0), (1, 2, 3)) for i, n in enumerate(stack)],
                "rows": [Part("c", (to, 0), (of, 0), (1, 3)) for to, of in rows],
            }

        self.assertEqual([], self.differences(source, target, names=names()))
        self.assertEqual(
            [
                "rows: its parts: element [1, 0] is in no piece (3 elements)",
                "c: no element of target is c[0, 0] (3 elements)",
            ],
            self.differences(source, target, names=names(rows=((0, 1),))),
        )
        self.assertEqual(
            [
                "a: a[0, 0] is in stack and stack (6 elements)",
                "b: no element of target is b[0, 0] (6 elements)",
            ],
            self.differences(source, target, names=names(stack="aa")),
        )
        self.assertIn("outside", self.differences(source, target, names=names(rows=((0, 2),)))[0])
        with self.assertRaises(LayoutError):
            self.differences(
                source, target, names={"stack": [Part("a", (0, 0), (0, 0), (1, 2, 3))]}
            )

    def test_calls(self):
        for options in ({"unused": ["x"]}, {"replicated": ["x*"]}):
            with self.assertRaisesRegex(LayoutError, "no source tensor is called"):
                self.differences(**options)
        with self.assertRaisesRegex(LayoutError, "has no tensors"):
            self.differences(Layout({}), Layout({}))


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)


class Safetensors(Folder):
    def write(self, name, tensors, edit=lambda header: None, extra=b""):
        header, end = {}, 0
        for n, (shape, dtype, width) in tensors.items():
            size = width
            for k in shape:
                size *= k
            header[n] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
            end += size
        edit(header)
        text = json.dumps(header).encode()
        (self.folder / name).write_bytes(struct.pack("<Q", len(text)) + text + bytes(end) + extra)

    def index(self, weight_map, total=None):
        metadata = {} if total is None else {"metadata": {"total_size": total}}
        path = self.folder / "model.safetensors.index.json"
        path.write_text(json.dumps(metadata | {"weight_map": weight_map}))
        return path

    A = {"a": ((4, 6), "F32", 4)}
    B = {"b": ((3,), "BF16", 2)}
    source = Layout.whole({"a": ((4, 6), "float32"), "b": ((3,), "bfloat16")}, "source")

    def compared(self, path=None):
        report = verify_layout(self.source, Layout.safetensors(path or self.folder))
        return [what for _, what in report.differences]

    def test_one_file(self):
        self.write("model.safetensors", self.A | self.B)
        self.assertEqual([], self.compared())

    def test_index(self):
        self.write("1.safetensors", self.A)
        self.write("2.safetensors", self.B)
        path = self.index({"a": "1.safetensors", "b": "2.safetensors"}, 102)
        self.assertEqual([], self.compared())
        self.assertEqual([], self.compared(path))
        self.index({"a": "1.safetensors", "b": "2.safetensors"}, 100)
        self.assertEqual(
            [
                "model.safetensors.index.json: the index's total_size is 100 bytes, its tensors "
                "have 102"
            ],
            self.compared(),
        )
        self.index({"a": "1.safetensors", "b": "1.safetensors"})
        self.assertIn("which has not", self.compared()[0])

    def test_tensor_of_two_files(self):
        self.write("1.safetensors", self.A)
        self.write("2.safetensors", self.A | self.B)
        self.index({"a": "1.safetensors", "b": "2.safetensors"})
        self.assertEqual(
            [
                "model.safetensors.index.json: 2.safetensors has it, the index has it elsewhere",
                "model.safetensors.index.json: element [0, 0] is twice in it: in 1.safetensors "
                "and 2.safetensors (24 elements)",
            ],
            self.compared(),
        )

    def test_headers(self):
        def overlap(header):
            header["b"]["data_offsets"] = [90, 96]

        def gap(header):
            header["b"]["data_offsets"] = [100, 106]

        def size(header):
            header["a"]["shape"] = [4, 7]

        for edit, message in (
            (overlap, "its bytes are also those of another tensor"),
            (gap, "4 bytes before it are no tensor's"),
            (size, "data_offsets [0, 96] are not its size"),
        ):
            with self.subTest(message):
                self.write("model.safetensors", self.A | self.B, edit)
                self.assertIn(message, "\n".join(self.compared()))
        self.write("model.safetensors", self.A | self.B, extra=b"x")
        self.assertIn("bytes, its header needs", self.compared()[0])

    def test_unreadable(self):
        file = self.folder / "model.safetensors"
        for data in (b"", b"abc", struct.pack("<Q", 10**12), struct.pack("<Q", 2) + b"{x"):
            file.write_bytes(data)
            with self.assertRaises(LayoutError):
                Layout.safetensors(file)
        for text in ("[]", '{"weight_map": 3}', '{"weight_map": {"a": "../x"}}', '{"a":1,"a":2}'):
            path = self.folder / "x.safetensors.index.json"
            path.write_text(text)
            with self.assertRaises(LayoutError):
                Layout.safetensors(path)
        with self.assertRaises(LayoutError):
            Layout.safetensors(self.folder / "no_such.safetensors")


class Distributed(Folder):
    """torch.distributed.checkpoint, as this PyTorch writes it."""

    source = Layout.whole({"model.a": ((4, 6), "float32"), "model.b": ((3,), "bfloat16")})

    def setUp(self):
        super().setUp()
        state = {"a": torch.zeros(4, 6), "b": torch.zeros(3, dtype=torch.bfloat16), "step": 3}
        dcp.save({"model": state}, checkpoint_id=self.folder, no_dist=True)

    def test_right(self):
        report = verify_layout(self.source, Layout.dcp(self.folder))
        self.assertTrue(report, report)
        self.assertEqual(["model.step"], report.not_compared)

    def edited(self, edit):
        path = self.folder / ".metadata"
        metadata = pickle.loads(path.read_bytes())
        edit(metadata)
        path.write_bytes(pickle.dumps(metadata))
        report = verify_layout(self.source, Layout.dcp(self.folder))
        self.assertFalse(report)
        return report.text

    def test_wrong(self):
        def lost(metadata):
            metadata.state_dict_metadata["model.a"].chunks.clear()

        def smaller(metadata):
            chunk = metadata.state_dict_metadata["model.a"].chunks[0]
            metadata.state_dict_metadata["model.a"].chunks[0] = type(chunk)(
                chunk.offsets, torch.Size((4, 5))
            )

        self.assertIn("element [0, 0] is in no piece (24 elements)", self.edited(lost))
        super().tearDown()
        self.setUp()
        self.assertIn("element [0, 5] is in no piece", self.edited(smaller))

    def test_not_stored(self):
        def edit(metadata):
            key = next(k for k in metadata.storage_data if k.fqn == "model.b")
            del metadata.storage_data[key]

        with self.assertRaisesRegex(LayoutError, "model.b: storage_data has no piece at"):
            self.edited(edit)

    def test_no_storage_data(self):
        with self.assertRaisesRegex(LayoutError, "storage_data has no"):
            self.edited(lambda metadata: metadata.storage_data.clear())

    def test_places_in_files(self):
        for message, offset, length in (
            ("has 1 bytes in __0_0.distcp", 0, 1),
            ("no place in __0_0.distcp", -50, 500),
        ):

            def edit(metadata, offset=offset, length=length):
                key, info = next(
                    (k, i) for k, i in metadata.storage_data.items() if k.fqn == "model.a"
                )
                metadata.storage_data[key] = type(info)(info.relative_path, offset, length)

            with self.assertRaisesRegex(LayoutError, message):
                self.edited(edit)
            super().tearDown()
            self.setUp()

    def test_missing_file(self):
        (self.folder / "__0_0.distcp").unlink()
        with self.assertRaisesRegex(LayoutError, "the file __0_0.distcp.* is not there"):
            Layout.dcp(self.folder)

    def test_truncated(self):
        file = self.folder / "__0_0.distcp"
        os.truncate(file, file.stat().st_size - 1)
        report = verify_layout(self.source, Layout.dcp(self.folder))
        self.assertIn("its pieces need", report.text)

    def test_hostile(self):
        class Call:
            def __reduce__(self):
                return os.mkdir, (str(folder / "was here"),)

        folder = self.folder
        (folder / ".metadata").write_bytes(pickle.dumps(Call()))
        with self.assertRaisesRegex(LayoutError, "would call posix.mkdir"):
            Layout.dcp(folder)
        self.assertFalse((folder / "was here").exists())

    def test_deep_keys(self):
        nested = b")" + b"\x85" * 2_000_000  # one-element tuples
        wide = b")" + b"2\x86" * 60  # (x, x) of (x, x) of ...: DUP, TUPLE2
        for message, key in (("nested more than 100 levels", nested), ("more than 10,000", wide)):
            (self.folder / ".metadata").write_bytes(b"\x80\x04}" + key + b"Ns.")
            with self.subTest(message), self.assertRaisesRegex(LayoutError, message):
                Layout.dcp(self.folder)

    def test_marks(self):
        """A mark of the stack is no value."""
        for program in (b"(\x85.", b"](a.", b"}(Ns.", b"(2.", b"(\x94.", b"(q\x00.", b"(."):
            (self.folder / ".metadata").write_bytes(b"\x80\x04" + program)
            with self.subTest(program), self.assertRaisesRegex(LayoutError, "the stack is too"):
                Layout.dcp(self.folder)


def sharded(key, shape, offset, local, replica=0, extra=0, **others):
    return types.SimpleNamespace(
        key=key,
        dtype=torch.float32,
        global_shape=shape,
        global_offset=offset,
        local_shape=local,
        replica_id=replica,
        prepend_axis_num=extra,
        flattened_range=None,
        **others,
    )


class Megatron(unittest.TestCase):
    def ranks(self, *bugs):
        """tp 2: a cut by rows, a norm on both ranks, two layers that are stacked."""
        return [
            {
                "w": sharded("w", (4, 6), ((0 if "offset" in bugs else 2 * r), 0), (2, 6)),
                "norm": sharded("norm", (6,), (0,), (6,), (0, 0 if "mains" in bugs else r)),
                "layers": [sharded("layer", (2, 3), (i, 0), (3,), (r,), extra=1) for i in range(2)],
                "step": 3,
            }
            for r in range(2)
        ]

    source = Layout.whole(
        {"w": ((4, 6), "float32"), "norm": ((6,), "float32"), "layer": ((2, 3), "float32")}
    )

    def test_right(self):
        report = verify_layout(self.source, Layout.megatron(self.ranks()))
        self.assertTrue(report, report)
        self.assertEqual(["step"], report.not_compared)

    def test_wrong(self):
        text = verify_layout(self.source, Layout.megatron(self.ranks("offset"))).text
        self.assertIn("w: ranks: its piece at [0, 0] is of 2 state dicts, 2 of them as", text)
        self.assertIn("w: ranks: element [2, 0] is in no piece (12 elements)", text)
        text = verify_layout(self.source, Layout.megatron(self.ranks("mains"))).text
        self.assertIn("norm: ranks: its piece at [0] is of 2 state dicts, 2 of them", text)
        text = verify_layout(self.source, Layout.megatron(self.ranks()[1:])).text
        self.assertIn("0 of them as the main replica", text)

    def test_unsupported(self):
        tensor = sharded("w", (4,), (0,), (4,))
        tensor.flattened_range = slice(0, 2)
        for leaf in (
            torch.zeros(4),
            tensor,
            sharded("w", (4,), (0,), (4,), allow_shape_mismatch=True),
        ):
            with self.assertRaises(LayoutError):
                Layout.megatron([{"w": leaf}])


class Large(Folder):
    """Llama 3.1 405B: the index that is published beside its 191 files, made anew, against the
    shards of tensor parallel 8 and pipeline parallel 18."""

    LAYERS, HIDDEN, FEATURES, GROUPS, SIZE, VOCABULARY = 126, 16384, 53248, 8, 128, 128256

    def tensors(self):
        hidden, kv = self.HIDDEN, self.GROUPS * self.SIZE
        of = {"model.embed_tokens.weight": (self.VOCABULARY, hidden)}
        for i in range(self.LAYERS):
            for name, shape in {
                "self_attn.q_proj": (hidden, hidden),
                "self_attn.k_proj": (kv, hidden),
                "self_attn.v_proj": (kv, hidden),
                "self_attn.o_proj": (hidden, hidden),
                "mlp.gate_proj": (self.FEATURES, hidden),
                "mlp.up_proj": (self.FEATURES, hidden),
                "mlp.down_proj": (hidden, self.FEATURES),
                "input_layernorm": (hidden,),
                "post_attention_layernorm": (hidden,),
            }.items():
                of[f"model.layers.{i}.{name}.weight"] = shape
        of |= {"model.norm.weight": (hidden,), "lm_head.weight": (self.VOCABULARY, hidden)}
        return {n: (s, "bfloat16") for n, s in of.items()}

    def shards(self, tp=8, layers=None):
        """Layers are stacked, as in Megatron's checkpoints."""
        hidden, n = self.HIDDEN, self.LAYERS
        rows = (self.GROUPS * self.SIZE * 2 + hidden) // tp
        ranks = []
        for r in range(tp):
            state = []
            for key, whole, dim in (
                ("qkv", (rows * tp, hidden), 0),
                ("proj", (hidden, hidden), 1),
                ("fc1", (2, self.FEATURES, hidden), 1),
                ("fc2", (hidden, self.FEATURES), 1),
                ("norm1", (hidden,), None),
                ("norm2", (hidden,), None),
            ):
                local, offset = list(whole), [0] * len(whole)
                if dim is not None:
                    local[dim] //= tp
                    offset[dim] = r * local[dim]
                replica = 0 if dim is not None else r
                state += [
                    sharded(key, (n, *whole), (i, *offset), tuple(local), replica, 1)
                    for i in layers or range(n)
                ]
            for key in ("embedding", "head"):
                size = self.VOCABULARY // tp
                state.append(sharded(key, (self.VOCABULARY, hidden), (r * size, 0), (size, hidden)))
            state.append(sharded("norm", (hidden,), (0,), (hidden,), r))
            for leaf in state:
                leaf.dtype = torch.bfloat16
            ranks.append(state)
        return ranks

    def names(self, key):
        hidden, g, size = self.HIDDEN, self.GROUPS, self.SIZE
        whole = {
            "embedding": "model.embed_tokens.weight",
            "head": "lm_head.weight",
            "norm": "model.norm.weight",
        }
        if key in whole:
            return whole[key]
        parts = []
        for i in range(self.LAYERS):
            layer = f"model.layers.{i}."
            if key == "qkv":
                queries = hidden // g
                row = 0
                for group in range(g):
                    for x, count in (("q", queries), ("k", size), ("v", size)):
                        name = f"{layer}self_attn.{x}_proj.weight"
                        parts.append(
                            Part(name, (i, row, 0), (group * count, 0), (1, count, hidden))
                        )
                        row += count
            elif key == "fc1":
                for half, x in enumerate(("gate", "up")):
                    name = f"{layer}mlp.{x}_proj.weight"
                    shape = (1, 1, self.FEATURES, hidden)
                    parts.append(Part(name, (i, half, 0, 0), (0, 0), shape))
            else:
                name, shape = {
                    "proj": ("self_attn.o_proj", (hidden, hidden)),
                    "fc2": ("mlp.down_proj", (hidden, self.FEATURES)),
                    "norm1": ("input_layernorm", (hidden,)),
                    "norm2": ("post_attention_layernorm", (hidden,)),
                }[key]
                zeros = (0,) * len(shape)
                parts.append(Part(f"{layer}{name}.weight", (i, *zeros), zeros, (1, *shape)))
        return parts

    def test_index(self):
        tensors = self.tensors()
        total = sum(2 * torch.Size(s).numel() for s, _ in tensors.values())
        held = {
            n: f"model-{i * 191 // len(tensors) + 1:05}-of-00191.safetensors"
            for i, n in enumerate(tensors)
        }
        path = self.folder / "model.safetensors.index.json"
        path.write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": held}))
        start = time.perf_counter()
        source = Layout.safetensors(path, tensors)
        report = verify_layout(source, Layout.megatron(self.shards()), names=self.names)
        self.assertTrue(report, report)
        self.assertEqual(405_853_388_800, report.elements)
        self.assertLess(time.perf_counter() - start, 20)

        layers = [*range(63), *range(63)]  # the second half loads as the first
        wrong = Layout.megatron(self.shards(layers=layers))
        found = [str(d) for d in verify_layout(source, wrong, names=self.names).differences]
        self.assertTrue(any("qkv" in d and "[63, 0, 0] is in no piece" in d for d in found))


if __name__ == "__main__":
    unittest.main()
