# SPDX-License-Identifier: Apache-2.0
"""Conversions of checkpoints, right and wrong, with the first wrong element."""

import argparse
import collections
import contextlib
import copy
import functools
import io
import unittest
from concurrent.futures import ThreadPoolExecutor

import conversion_models as models
import shardproof.torch as sp
import torch
from shardproof.torch.conversion.identities import keeps_values

NORMS = ["*norm.weight"]
LLAMA = {
    (pp, tp): {
        "source": models.llama(),
        "target": models.llama_specification(pp, tp),
        "replicated": NORMS if tp > 1 else (),
    }
    for pp, tp in ((1, 1), (1, 2), (2, 2))
}


def llama(pp, tp, *bugs):
    return functools.partial(models.llama_to_megatron, pp=pp, tp=tp, bugs=bugs), LLAMA[pp, tp]


def qwen3_moe(*bugs):
    return functools.partial(models.qwen3_moe_to_megatron, bugs=bugs), {
        "source": models.qwen3_moe(),
        "target": models.qwen3_moe_specification,
        "replicated": ["*_norm.weight", "mlp.gate.weight"],
    }


def deepseek_v3(*bugs):
    return functools.partial(models.deepseek_v3_to_megatron, bugs=bugs), {
        "source": models.deepseek_v3(),
        "target": models.deepseek_v3_specification(),
        "unused": ["*.inv_freq"],
    }


def gpt2(*bugs):
    return functools.partial(models.gpt2_to_megatron, bugs=bugs), {
        "source": models.gpt2(),
        "target": models.gpt2_specification,
        "replicated": ["wte.weight"],
    }


def lora(*bugs):
    return functools.partial(models.resharded, bugs=bugs), {
        "source": models.lora(),
        "target": lambda ranks: [
            {
                "lora_a": ranks[0]["lora_a"],
                "lora_b": ranks[r // 2]["lora_b"][r % 2 * 2 : r % 2 * 2 + 2],
            }
            for r in range(4)
        ],
        "replicated": ["*/lora_a"],
        "tied": [("0/lora_a", "1/lora_a")],
    }


def round_trip(*bugs):
    def convert(source):
        return models.megatron_to_llama(models.llama_to_megatron(source)[0], bugs)

    return convert, {"source": models.llama(), "target": {n: n for n in models.llama()}}


def in_bfloat16(*bugs):
    def convert(source):
        if "rounded-twice" in bugs:
            source = {n: x.half() for n, x in source.items()}
        return models.llama_to_megatron({n: x.bfloat16() for n, x in source.items()})

    return convert, LLAMA[1, 1] | {"dtype": torch.bfloat16}


RIGHT = {
    "llama": llama(1, 1),
    "llama, tp 2": llama(1, 2),
    "llama, pp 2 tp 2": llama(2, 2),
    "llama, there and back": round_trip(),
    "llama in bfloat16": in_bfloat16(),
    "qwen3-moe, ep 2": qwen3_moe(),
    "deepseek-v3": deepseek_v3(),
    "gpt-2": gpt2(),
    "lora from tp 2 to tp 4": lora(),
}
QKV = "decoder.layers.0.self_attention.linear_qkv.weight"
ATTENTION = "model.layers.0.self_attn."
# The case, the kind of the first difference, its tensor, index, what it holds and should hold.
WRONG = [
    (
        llama(1, 1, "not-interleaved"),
        "element",
        f"0/{QKV}",
        (4, 0),
        f"{ATTENTION}q_proj.weight[4, 0]",
        f"{ATTENTION}k_proj.weight[0, 0]",
    ),
    (
        llama(1, 2, "key-after-value"),
        "element",
        f"0/{QKV}",
        (4, 0),
        f"{ATTENTION}v_proj.weight[0, 0]",
        f"{ATTENTION}k_proj.weight[0, 0]",
    ),
    (
        llama(1, 1, "interleaved-by-rows"),
        "element",
        f"0/{QKV}",
        (1, 0),
        f"{ATTENTION}q_proj.weight[4, 0]",
        f"{ATTENTION}q_proj.weight[1, 0]",
    ),
    (
        llama(1, 2, "up-before-gate"),
        "element",
        "0/decoder.layers.0.mlp.linear_fc1.weight",
        (0, 0),
        "model.layers.0.mlp.up_proj.weight[0, 0]",
        "model.layers.0.mlp.gate_proj.weight[0, 0]",
    ),
    (
        llama(1, 2, "cut-after-fusion"),
        "element",
        "0/decoder.layers.0.mlp.linear_fc1.weight",
        (6, 0),
        "model.layers.0.mlp.gate_proj.weight[6, 0]",
        "model.layers.0.mlp.up_proj.weight[0, 0]",
    ),
    (
        llama(1, 2, "down-cut-once-for-all"),
        "element",
        "1/decoder.layers.0.mlp.linear_fc2.weight",
        (0, 0),
        "model.layers.0.mlp.down_proj.weight[0, 0]",
        "model.layers.0.mlp.down_proj.weight[0, 6]",
    ),
    (
        llama(2, 2, "stage-1-has-stage-0"),
        "element",
        f"2/{QKV}",
        (0, 0),
        f"{ATTENTION}q_proj.weight[0, 0]",
        "model.layers.1.self_attn.q_proj.weight[0, 0]",
    ),
    (
        llama(1, 1, "transposed-projection"),
        "element",
        "0/decoder.layers.0.self_attention.linear_proj.weight",
        (0, 1),
        f"{ATTENTION}o_proj.weight[1, 0]",
        f"{ATTENTION}o_proj.weight[0, 1]",
    ),
    (
        llama(1, 1, "head-is-embedding"),
        "element",
        "0/output_layer.weight",
        (0, 0),
        "model.embed_tokens.weight[0, 0]",
        "lm_head.weight[0, 0]",
    ),
    (
        llama(1, 1, "padded-in-front"),
        "element",
        "0/embedding.word_embeddings.weight",
        (0, 0),
        "the constant 0.0",
        "model.embed_tokens.weight[0, 0]",
    ),
    (
        llama(1, 2, "padding-not-written"),
        "element",
        "1/embedding.word_embeddings.weight",
        (4, 0),
        "memory that nothing has written",
        "the constant 0.0",
    ),
    (
        round_trip("norms-swapped"),
        "element",
        "model.layers.1.input_layernorm.weight",
        (0,),
        "model.layers.1.post_attention_layernorm.weight[0]",
        "model.layers.1.input_layernorm.weight[0]",
    ),
    (
        in_bfloat16("rounded-twice"),
        "element",
        "0/embedding.word_embeddings.weight",
        (0, 0),
        "model.embed_tokens.weight[0, 0] rounded to float16 rounded to bfloat16",
        "model.embed_tokens.weight[0, 0] rounded to bfloat16",
    ),
    (
        qwen3_moe("experts-of-rank-0"),
        "element",
        "1/mlp.experts.weight1",
        (0, 0, 0),
        "mlp.experts.0.gate_proj.weight[0, 0]",
        "mlp.experts.2.gate_proj.weight[0, 0]",
    ),
    (
        qwen3_moe("experts-dealt-out"),
        "element",
        "0/mlp.experts.weight1",
        (1, 0, 0),
        "mlp.experts.2.gate_proj.weight[0, 0]",
        "mlp.experts.1.gate_proj.weight[0, 0]",
    ),
    (
        qwen3_moe("norms-swapped"),
        "element",
        "0/self_attention.q_layernorm.weight",
        (0,),
        "self_attn.k_norm.weight[0]",
        "self_attn.q_norm.weight[0]",
    ),
    (
        qwen3_moe("router-in-bfloat16"),
        "element",
        "0/mlp.router.weight",
        (0, 0),
        "mlp.gate.weight[0, 0] rounded to bfloat16",
        "mlp.gate.weight[0, 0]",
    ),
    (
        deepseek_v3("rope-first"),
        "element",
        "decoder.layers.0.self_attention.linear_kv_down_proj.weight",
        (0, 0),
        f"{ATTENTION}kv_a_proj_with_mqa.weight[2, 0]",
        f"{ATTENTION}kv_a_proj_with_mqa.weight[0, 0]",
    ),
    (
        deepseek_v3("rope-of-queries-reversed"),
        "element",
        "decoder.layers.0.self_attention.linear_q_up_proj.weight",
        (3, 0),
        f"{ATTENTION}q_b_proj.weight[4, 0]",
        f"{ATTENTION}q_b_proj.weight[3, 0]",
    ),
    (
        deepseek_v3("layer-before"),
        "element",
        "decoder.layers.2.mlp.router.weight",
        (0, 0),
        "model.layers.1.mlp.gate.weight[0, 0]",
        "model.layers.2.mlp.gate.weight[0, 0]",
    ),
    (
        deepseek_v3("bias-forgotten"),
        "missing",
        "decoder.layers.1.mlp.router.expert_bias",
        (),
        "",
        "",
    ),
    (
        gpt2("not-transposed"),
        "element",
        "decoder.layers.0.self_attention.linear_proj.weight",
        (0, 1),
        "h.0.attn.c_proj.weight[0, 1]",
        "h.0.attn.c_proj.weight[1, 0]",
    ),
    (
        gpt2("not-interleaved"),
        "element",
        QKV,
        (2, 0),
        "h.0.attn.c_attn.weight[0, 2]",
        "h.0.attn.c_attn.weight[0, 8]",
    ),
    (
        gpt2("bias-as-it-is"),
        "element",
        "decoder.layers.0.self_attention.linear_qkv.bias",
        (2,),
        "h.0.attn.c_attn.bias[2]",
        "h.0.attn.c_attn.bias[8]",
    ),
    (
        gpt2("one-position-less"),
        "shape",
        "embedding.position_embeddings.weight",
        (),
        "shape [5, 8]",
        "shape [6, 8]",
    ),
    (
        lora("rank-0-for-all"),
        "element",
        "2/lora_b",
        (0, 0),
        "0/lora_b[0, 0]",
        "1/lora_b[0, 0]",
    ),
]


class Models(unittest.TestCase):
    def test_right(self):
        for name, (convert, options) in RIGHT.items():
            with self.subTest(name):
                report = sp.verify_conversion(convert, **options)
                self.assertTrue(report, report)
                self.assertEqual([], report.differences)

    def test_wrong(self):
        for (convert, options), *expected in WRONG:
            with self.subTest(convert=convert):
                report = sp.verify_conversion(convert, **options)
                self.assertEqual("NOT EQUIVALENT", report.verdict)
                first = report.differences[0]
                found = [first.kind, first.name, first.index, first.holds, first.should_hold]
                self.assertEqual(expected, found)

    def test_on_numbers(self):
        """Each verdict on random weights: a right conversion gives what its specification gives."""
        for (convert, options), right in [
            *((case, True) for case in RIGHT.values()),
            *((case[0], False) for case in WRONG),
        ]:
            source, target = options["source"], options["target"]
            drawn = {}

            def draw(x, drawn=drawn):
                if isinstance(x, list):
                    return [draw(y) for y in x]
                return {n: drawn.setdefault(id(y), torch.randn(y.shape)) for n, y in x.items()}

            numbers = draw(source)
            for first, *others in options.get("tied", ()):
                for name in others:
                    rank, name = name.split("/")
                    numbers[int(rank)][name].copy_(numbers[int(first[0])][first[2:]])
            made = convert(copy.deepcopy(numbers))
            with self.subTest(convert=convert):
                same = flat_equal(made, specified(target, numbers), options.get("dtype"))
                self.assertEqual(right, same)


def specified(target, numbers):
    if callable(target):
        return target(numbers)
    if isinstance(target, list):
        return [specified(t, numbers) for t in target]
    return {n: numbers[x] if isinstance(x, str) else x(numbers) for n, x in target.items()}


def flat_equal(a, b, dtype):
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(flat_equal(x, y, dtype) for x, y in zip(a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(flat_equal(a[k], b[k], dtype) for k in a)
    return a.shape == b.shape and torch.equal(a, b if dtype is None else b.to(dtype))


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


X = {"x": meta(4, 3)}


def check(convert, target=None, source=X, **options):
    return sp.verify_conversion(convert, source=source, target=target or {"x": "x"}, **options)


class Refusals(unittest.TestCase):
    """What would depend on values is refused, also if the conversion hides the error."""

    def test_values(self):
        for name, read in {
            "item": lambda x: x[0, 0].item(),
            "bool": lambda x: bool(x[0, 0]),
            "comparison": lambda x: (x > 0).any(),
            "numpy": lambda x: x.numpy(),
            "tolist": lambda x: x.tolist(),
            "equal": lambda x: torch.equal(x, x),
            "nonzero": lambda x: x.nonzero(),
            "sum": lambda x: x.sum(),
            "arithmetic": lambda x: x * 2,
            "in place": lambda x: x.mul_(2),
            "multiplication": lambda x: x @ x.t(),
            "sort": lambda x: x.sort(),
            "save": lambda x: torch.save(x, io.BytesIO()),
            "storage": lambda x: bytes(x.untyped_storage()),
            "elements of it": lambda x: x.untyped_storage()[0],
            "bits": lambda x: x.view(torch.int32),
            "strides": lambda x: x.as_strided((2,), (1,)),
            "other memory": lambda x: x.set_(x.clone()),
            "size": lambda x: x.resize_(2),
            "dlpack": lambda x: torch.from_dlpack(x),
            "callback": lambda x: x.apply_(lambda v: v),
            "in-place transposition": lambda x: x.t_(),
            "outside": lambda x: torch.Tensor.copy_(OUTSIDE, x),
            "out": lambda x: torch.cat([x, x], out=torch.zeros(8, 3)),
            "written twice": lambda x: torch.zeros(4, 3).index_put_((torch.tensor([0, 0]),), x[:2]),
            "added up": lambda x: torch.zeros(4, 3).index_add_(0, torch.tensor([0]), x[:1]),
            "error": lambda x: x.view(5, 5),
            "thread": lambda x: ThreadPoolExecutor(1).submit(x.clone).result(),
        }.items():

            def convert(source, read=read):
                with contextlib.suppress(Exception):
                    read(source["x"])
                return {"x": source["x"]}

            with self.subTest(name), self.assertRaises(sp.ConversionError):
                check(convert)

    def test_message(self):
        with self.assertRaisesRegex(
            sp.ConversionError,
            r"the conversion cannot be followed: gt uses the value of x\[0, 0\]",
        ):
            check(lambda s: {"x": s["x"] if s["x"][0, 0] > 0 else -s["x"]})

    def test_calls(self):
        for message, options in {
            "the source has no 'y'": {"target": {"x": "y"}},
            "replicated: nothing is called 'z'": {"replicated": ["z"]},
            "unused: nothing is called": {"unused": ["z"]},
            "ignore: nothing is called": {"ignore": ["z"]},
            "arithmetic: 'matmul' is not among": {"arithmetic": ["matmul"]},
            "the source has no tensors": {"source": {"x": 1}},
            "the specification has no tensors": {"target": lambda s: {"x": 1}},
            "tied: the source has no tensor": {"tied": [("x", "y")]},
            "no definite value": {"target": lambda s: {"x": torch.empty(4, 3)}},
            "two values of the source": {"source": {"a/b": meta(1), "a": {"b": meta(1)}}},
        }.items():
            with self.subTest(message), self.assertRaisesRegex(sp.ConversionError, message):
                check(lambda s: {"x": s["x"]}, **options)

    def test_unspecified_in_conversion(self):
        with self.assertRaises(sp.ConversionError):
            check(lambda s: {"x": sp.unspecified(4, 3, dtype=torch.float32)})

    def test_errors_of_the_conversion(self):
        with self.assertRaises(KeyError):
            check(lambda s: {"x": s["y"]})

    def test_nested(self):
        with self.assertRaisesRegex(sp.ConversionError, "verified already"):
            check(lambda s: {"x": s["x"], "y": bool(check(lambda s: s))})

    def test_other_tensors(self):
        with self.assertRaises(sp.ConversionError):
            check(lambda s: {"x": s["x"], "y": torch.nn.Buffer(torch.zeros(1)).to_sparse()})

    def test_kept_tensor(self):
        kept = []
        check(lambda s: kept.append(s["x"]) or s)
        with self.assertRaises(sp.ConversionError):
            check(lambda s: {"x": kept[0]})

    def test_sources_with_more_than_their_elements(self):
        class Named(dict):
            pass

        marked = torch.zeros(4, 3)
        marked.partition_dim = 1
        graded = torch.zeros(4, 3)
        graded.grad = torch.zeros(4, 3)
        x = meta(4, 3)
        ordered = collections.OrderedDict(x=x)
        ordered.version = 2
        for message, source in {
            "source tensor 'x' has the attribute 'partition_dim'.*detach": {"x": marked},
            "'x' is a Parameter": {"x": torch.nn.Parameter(x)},
            "'x' requires a gradient": {"x": torch.zeros(4, 3, requires_grad=True)},
            "'x' has a gradient": {"x": graded},
            "the source is a defaultdict": collections.defaultdict(int, x=x),
            "'a' of the source is a Named": {"x": x, "a": Named()},
            "the source has the attribute 'version'": ordered,
            "'a' of the source is a Sizes": {
                "x": x,
                "a": collections.namedtuple("Sizes", "n")(1),
            },
            "value 'a' .Namespace. has tensors in it": {"x": x, "a": argparse.Namespace(x=x)},
            "value 'a' .generator. cannot be copied": {"x": x, "a": (i for i in "a")},
        }.items():
            with self.subTest(message), self.assertRaisesRegex(sp.ConversionError, message):
                check(lambda s: {"x": s["x"]}, source=source)

    def test_writes_to_what_is_read(self):
        """PyTorch may read elements that it has written already."""

        def write(target, value):
            target[...] = value

        again = "writes elements that it also reads"
        for name, message, change in (
            ("shifted", again, lambda x: write(x[:, 1:], x[:, :-1])),
            ("transposed", again, lambda x: write(x[:3], x[:3].t())),
            ("added", again, lambda x: x[:, 1:].add_(x[:, :-1])),
            ("broadcast", again, lambda x: x.sub_(x[:, :1])),
            ("indexed", again, lambda x: write_rows(x[:3], x[1:])),
            ("scattered", again, lambda x: x[:3].scatter_(0, torch.tensor([[0]]), x[1:])),
            ("constants", again, lambda x: shifted_constants()),
            ("window", "several places", lambda x: torch.zeros(13).unfold(0, 2, 1).copy_(1 * ONE)),
            ("window filled", "several places", lambda x: torch.zeros(9).unfold(0, 2, 1).fill_(1)),
        ):

            def convert(source, change=change):
                change(source["x"])
                return source

            with self.subTest(name), self.assertRaisesRegex(sp.ConversionError, message):
                check(convert, arithmetic=["add", "sub"])

        def allowed(source):
            x = source["x"]
            x[0] = x[1]  # disjoint
            x[:, ::2][2:] = x[:, 1:2][2:]  # disjoint, in one range of memory
            write(x, x)
            x[3].add_(x[3])
            return source

        def specification(source):
            a, b, c, d = source["x"]
            d = torch.stack([d[1], d[1], d[1]])
            return {"x": torch.stack([b, b, torch.stack([c[1], c[1], c[1]]), d + d])}

        report = check(allowed, specification, arithmetic=["add"], replicated=["x"], unused=["x"])
        self.assertTrue(report, report)

    def test_text_and_addresses(self):
        for name, read in {
            "repr": repr,
            "str": str,
            "format": lambda x: f"{x}",
            "format of a number": lambda x: f"{x[0, 0]:.2f}",
            "address": lambda x: x.data_ptr() % 16,
            "address as an index": lambda x: range(9)[x.data_ptr()],
            "address in words": lambda x: str(x.data_ptr()),
            "address of the storage": lambda x: int(x.untyped_storage().data_ptr()),
            "comparison": lambda x: x.data_ptr() == 0,
            "sparse": lambda x: torch.ops.aten._to_copy(x, layout=torch.sparse_coo),
        }.items():

            def convert(source, read=read):
                with contextlib.suppress(Exception):
                    read(source["x"])
                return {"x": source["x"]}

            with self.subTest(name), self.assertRaises(sp.ConversionError):
                check(convert)

        def deduplicated(source):
            self.assertEqual("tensor([1, 2])", repr(torch.tensor([1, 2])))
            self.assertEqual("3", f"{torch.tensor(3)}")
            return {x.data_ptr(): {"x": x} for x in (source["x"], source["y"])}.popitem()[1]

        x = torch.zeros(4, 3)
        self.assertTrue(check(deduplicated, source={"x": x, "y": x}))


OUTSIDE = torch.zeros(4, 3)
ONE = torch.ones(12, 2)


def write_rows(target, values):
    target[torch.arange(3)] = values


def shifted_constants():
    index = torch.ones(2, 6, dtype=torch.long)
    index[:, 1:].add_(index[:, :-1])


class Elements(unittest.TestCase):
    def first(self, convert, **options):
        report = check(convert, **options)
        self.assertFalse(report)
        return str(report.differences[0])

    def test_writes_through_views(self):
        def convert(source):
            source["x"][1:3][0].fill_(2)
            return source

        self.assertEqual(
            "x[1, 0] holds the constant 2.0, but should hold x[1, 0] (3 elements of this tensor)",
            self.first(convert),
        )

    def test_writes_to_shared_memory(self):
        whole = torch.empty(4, 3)
        source = {"x": whole, "row": whole[2]}

        def convert(source, deep=False):
            source = copy.deepcopy(source) if deep else source
            source["row"].zero_()
            return {"x": source["x"]}

        for deep in (False, True):
            report = check(functools.partial(convert, deep=deep), source=source)
            self.assertEqual((2, 0), report.differences[0].index)

    def test_the_specification_does_not_change_the_source(self):
        self.assertTrue(
            check(
                lambda s: {"x": s["x"], "y": s["x"].flip(0)},
                lambda s: {"y": s["x"].flip(0), "x": s.pop("x")},
                replicated=["x"],
            )
        )

    def test_functions_of_the_specification_are_apart(self):
        def written(source):
            source["x"].zero_()
            return source.pop("x")[:1]

        target = {"x": "x", "a": written, "b": lambda s: s["x"][:1], "c": written}
        report = check(
            lambda s: {
                "x": s["x"],
                "a": torch.zeros(1, 3),
                "b": s["x"][:1],
                "c": torch.zeros(1, 3),
            },
            target,
            replicated=["x"],
        )
        self.assertTrue(report, report)

    def test_duplicates_and_unused(self):
        report = check(
            lambda s: {"x": s["x"][:2], "y": s["x"][:1]},
            {"x": lambda s: s["x"][:2], "y": lambda s: s["x"][:1]},
        )
        self.assertEqual(
            [
                "x[0, 0] of the source is held more than once: 2 times (3 elements of this tensor)",
                "no element of the target holds x[2, 0] of the source (6 elements of this tensor)",
            ],
            [str(d) for d in report.differences],
        )

    def test_extra(self):
        self.assertEqual(
            "y is in the target, but not in its specification",
            self.first(lambda s: {"x": s["x"], "y": torch.zeros(1)}),
        )
        report = check(lambda s: {"x": s["x"], "y": torch.zeros(1)}, ignore=["y"])
        self.assertEqual((True, ["y"]), (bool(report), report.not_compared))
        self.assertIn("Not compared:\n  y", report.text)

    def test_values_that_are_no_tensors(self):
        target = {"x": "x", "step": 3}
        self.assertTrue(check(lambda s: {"x": s["x"], "step": 3}, target))
        self.assertEqual(
            "step holds 3.0, but should hold 3",
            self.first(lambda s: {"x": s["x"], "step": 3.0}, target=target),
        )

    def test_values_that_are_changed_in_place(self):
        source = {"x": meta(4, 3), "args": argparse.Namespace(tp=2), "ids": {1, 2}}

        def convert(source, change):
            if change == "tp":
                source["args"].tp = 1
            elif change == "ids":
                source["ids"].clear()
            return source

        for change, first in (
            ("", None),
            ("tp", "args holds Namespace(tp=1), but should hold Namespace(tp=2)"),
            ("ids", "ids holds set(), but should hold {1, 2}"),
        ):
            report = check(functools.partial(convert, change=change), lambda s: s, source=source)
            self.assertEqual(first, next(map(str, report.differences), None))
        self.assertEqual((2, {1, 2}), (source["args"].tp, source["ids"]))

    def test_objects_that_are_equal_by_attributes(self):
        class Sizes:
            heads = 1

        sizes = Sizes()
        sizes.heads = 2
        source = {"x": meta(4, 3), "sizes": sizes}
        self.assertTrue(check(lambda s: s, lambda s: s, source=source))

        def changed(source):
            source["sizes"].heads = 3
            return source

        self.assertFalse(check(changed, lambda s: s, source=source))

    def test_kinds_of_keys(self):
        target = {"0": "x"}
        self.assertTrue(check(lambda s: {"0": s["x"]}, target))
        for words, convert in {
            "int key 0": lambda s: {0: s["x"]},
            "list item 0": lambda s: [s["x"]],
        }.items():
            self.assertEqual(
                f"0 holds a value under {words}, but should hold a value under key '0'",
                self.first(convert, target=target),
            )
        self.assertEqual(
            "a/b holds a value under key 'a/b', but should hold a value under key 'a', key 'b'",
            self.first(lambda s: {"a/b": s["x"]}, target={"a": {"b": "x"}}),
        )

    def test_versions(self):
        """`_metadata` of a module's state dict is there."""
        source = torch.nn.Linear(3, 4, bias=False).state_dict()
        target = {"x": lambda s: s["weight"]}

        def convert(source):
            version = source._metadata[""]["version"]
            return {"x": source["weight"].flip(0) if version else source["weight"]}

        report = check(convert, target, source=source)
        self.assertIn("x[0, 0] holds weight[3, 0]", report.text)

    def test_constants(self):
        def spec(value):
            return {"x": lambda s: torch.cat([s["x"], torch.full((1, 3), value)])}

        for value, other in ((0.0, -0.0), (float("nan"), 0.0), (float("inf"), 1e38)):
            for padded in (value, other):
                report = check(
                    lambda s, v=padded: {
                        "x": torch.nn.functional.pad(s["x"], (0, 0, 0, 1), value=v)
                    },
                    spec(value),
                )
                self.assertEqual(padded is value, bool(report))

    def test_large_integers(self):
        source = {"x": meta(2)}
        for n, right in ((2**53 + 1, True), (2**53, False)):
            report = check(
                lambda s, n=n: {"x": s["x"], "n": torch.tensor([n])},
                {"x": "x", "n": lambda s: torch.tensor([2**53 + 1])},
                source=source,
            )
            self.assertEqual(right, bool(report))

    def test_random_numbers(self):
        target = {"x": lambda s: torch.cat([s["x"], torch.zeros(1, 3)])}
        self.assertEqual(
            "x[4, 0] holds a random number, but should hold the constant 0.0 "
            "(3 elements of this tensor)",
            self.first(lambda s: {"x": torch.cat([s["x"], torch.randn(1, 3)])}, target=target),
        )

    def test_unspecified(self):
        target = {"x": lambda s: torch.cat([s["x"], sp.unspecified(1, 3, dtype=torch.float32)])}
        report = check(lambda s: {"x": torch.cat([s["x"], torch.empty(1, 3)])}, target)
        self.assertTrue(report)
        self.assertEqual((12, 3), (report.elements, report.unspecified))
        report = check(lambda s: {"x": torch.cat([torch.empty(1, 3), s["x"]])}, target)
        self.assertFalse(report)

    def test_dtype(self):
        self.assertEqual(
            "x holds dtype float64, but should hold dtype float32",
            self.first(lambda s: {"x": s["x"].double()}),
        )

    def test_casts(self):
        half = {"x": meta(2, dtype=torch.bfloat16)}
        self.assertTrue(check(lambda s: {"x": s["x"].float().bfloat16()}, source=half))
        self.assertFalse(check(lambda s: {"x": s["x"].half().bfloat16()}, source=half))
        self.assertFalse(check(lambda s: {"x": s["x"].bfloat16().float()}))
        with self.assertRaises(sp.ConversionError):
            check(lambda s: {"x": s["x"].int()}, {"x": lambda s: s["x"].int()})

    def test_values_that_casts_keep(self):
        """All values of the 8- and 16-bit formats, there and back."""
        narrow = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)
        wide = (*narrow, torch.float32, torch.float64)
        for old in (*narrow, torch.int8, torch.uint8, torch.int16):
            size = torch.empty(0, dtype=old).element_size()
            bits = torch.arange(256**size, dtype=torch.int32)
            bits = bits.to(torch.uint8) if size == 1 else (bits - 32768).to(torch.int16)
            values = bits.view(old)
            exact = values.double()
            numbers = ~exact.isnan()
            for new in wide:
                back = values.to(new).double()
                same = torch.equal(back.isnan(), ~numbers) and all(
                    torch.equal(f(back)[numbers], f(exact)[numbers])
                    for f in (torch.signbit, torch.abs)
                )
                with self.subTest(old=old, new=new):
                    if keeps_values(old, new):
                        self.assertTrue(same)
                    elif old != torch.int16:  # the rule for integers is stricter than needed
                        self.assertFalse(same)

    def test_arithmetic(self):
        target = {"x": lambda s: s["x"] + 1}
        self.assertTrue(check(lambda s: {"x": s["x"].add_(1)}, target, arithmetic=["add"]))
        self.assertEqual(
            "x[0, 0] holds add(x[0, 0], 2), but should hold add(x[0, 0], 1) "
            "(12 elements of this tensor)",
            self.first(lambda s: {"x": s["x"] + 2}, target=target, arithmetic=["add"]),
        )
        for wrong in (lambda x: x.bfloat16() + 1, lambda x: torch.add(x, 1, alpha=2)):
            self.assertFalse(
                check(lambda s, f=wrong: {"x": f(s["x"]).float()}, target, arithmetic=["add"])
            )
        self.assertFalse(check(lambda s: {"x": s["x"].flip(0) + 1}, target, arithmetic=["add"]))
        with self.assertRaises(sp.ConversionError):
            check(
                lambda s: {"x": torch.add(s["x"], 1, out=torch.zeros(4, 3))},
                target,
                arithmetic=["add"],
            )

    def test_modules(self):
        def convert(source, assign=False, device=None):
            with torch.device(device or "cpu"):
                module = torch.nn.Linear(3, 4, bias=False)
            module.load_state_dict({"weight": source["x"]}, assign=assign)
            return module.to(torch.bfloat16).state_dict()

        for assign, device in ((False, None), (True, None), (True, "meta")):
            report = check(
                functools.partial(convert, assign=assign, device=device),
                {"weight": "x"},
                dtype=torch.bfloat16,
            )
            self.assertTrue(report, report)

        def not_loaded(source):
            return torch.nn.Linear(3, 4, bias=False).state_dict()

        report = check(not_loaded, {"weight": "x"})
        self.assertEqual("a random number", report.differences[0].holds)

    def test_tied(self):
        source = {"a": meta(2), "b": meta(2)}
        options = {"source": source, "target": {"x": "a"}, "unused": ["b"]}
        self.assertFalse(sp.verify_conversion(lambda s: {"x": s["b"]}, **options))
        report = sp.verify_conversion(lambda s: {"x": s["b"]}, tied=[("a", "b")], **options)
        self.assertTrue(report)
        self.assertEqual(["a and b hold equal numbers"], report.assumptions)

    def test_operators_that_move_elements(self):
        """Each against PyTorch on numbers: its elements are those that it puts there."""
        x = torch.arange(1.0, 13).view(4, 3)
        index = torch.tensor([2, 0, 3])
        for name, f in {
            "roll": lambda x: x.roll(1, 0),
            "rot90": lambda x: x.rot90(1),
            "repeat": lambda x: x.repeat(2, 1),
            "tile": lambda x: x.tile(1, 2),
            "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
            "index_select": lambda x: x.index_select(0, index),
            "gather": lambda x: x.gather(0, index[None]),
            "take": lambda x: x.take(index),
            "mask": lambda x: x[torch.tensor([True, False, True, True])],
            "masked_select": lambda x: x.masked_select(torch.arange(12).view(4, 3) % 2 == 0),
            "where": lambda x: torch.where(torch.arange(3) == 1, x, 0.0),
            "masked_fill": lambda x: x.masked_fill(torch.arange(3) == 1, 5),
            "index_fill": lambda x: x.index_fill(0, index, -1),
            "scatter": lambda x: torch.zeros(4, 3).scatter(0, index[None], x[:1]),
            "index_copy": lambda x: torch.zeros(4, 3).index_copy(0, index, x[:3]),
            "index_put": lambda x: torch.zeros(4, 3).index_put((index,), x[1:]),
            "slice_scatter": lambda x: torch.zeros(4, 3).slice_scatter(x[1:3], 0, 0, 2),
            "select_scatter": lambda x: torch.zeros(4, 3).select_scatter(x[1], 0, 2),
            "masked_scatter": lambda x: torch.zeros(4, 3).masked_scatter(
                torch.arange(12).view(4, 3) % 2 == 0, x
            ),
            "pad": lambda x: torch.nn.functional.pad(x, (1, 0, 2, 1), value=3.0),
            "unfold": lambda x: x.unfold(0, 2, 1),
            "diagonal": lambda x: x.diagonal(1),
            "split": lambda x: torch.cat(x.split([1, 3])[::-1]),
            "tensor_split": lambda x: torch.cat(x.tensor_split(3)[::-1], 0),
            "unbind": lambda x: torch.stack(x.unbind(1)),
            "meshgrid": lambda x: torch.meshgrid(x[0], x[1], indexing="ij")[1],
            "movedim": lambda x: x.view(2, 2, 3).movedim(0, 2).swapaxes(0, 1),
            "einsum": lambda x: torch.einsum("abc->cab", x.view(2, 2, 3)),
            "setitem": lambda x: x.__setitem__((slice(None), index[:2]), x[:, :2].clone()) or x,
            "expand": lambda x: x[:1].expand(2, 3).reshape(-1),
            "channels_last": lambda x: (
                x.view(1, 2, 2, 3)
                .contiguous(memory_format=torch.channels_last)
                .permute(0, 2, 3, 1)
                .reshape(-1)
            ),
        }.items():
            with self.subTest(name):
                numbers = f(x.clone())
                flat = torch.cat([numbers.reshape(-1)]).tolist()

                # The specification takes each element from the place where PyTorch's result says.
                def spec(s, shape=numbers.shape, flat=flat):
                    elements = s["x"].reshape(-1)
                    return torch.stack(
                        [
                            elements[int(v) - 1]
                            if v == int(v) and 1 <= v <= 12
                            else torch.tensor(v)
                            for v in flat
                        ]
                    ).view(shape)

                fills = {"masked_fill": 5.0, "pad": 3.0}
                if name in fills:  # the numbers that are no elements

                    def spec(s, shape=numbers.shape, f=f, fill=fills[name]):
                        here = f(torch.arange(1.0, 13).view(4, 3) + 100).reshape(-1).tolist()
                        elements = s["x"].reshape(-1)
                        return torch.stack(
                            [
                                torch.tensor(fill) if v == fill else elements[int(v) - 101]
                                for v in here
                            ]
                        ).view(shape)

                report = check(
                    lambda s, f=f: {"x": f(s["x"])},
                    {"x": spec},
                    replicated=["x"] if max(map(flat.count, flat)) > 1 else (),
                    unused=["x"],
                )
                self.assertTrue(report, report)


if __name__ == "__main__":
    unittest.main()
