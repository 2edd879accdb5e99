#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plans that are right only because of facts about known numbers are not called wrong.

Such facts: a sine and a cosine of one angle, a number that is an integer, an index within bounds.
Plans that are wrong with the true numbers are refuted.

hlo_known_numbers.py PROGRAM: shardproof's path.
"""

import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from plan_edit import NO_CAUSES

EQUIVALENT, REFUSED, UNDECIDED, NOT_EQUIVALENT = 0, 2, 5, 10

# Both programs have the same parameters and one result of x's shape; the plan's two devices compute
# all of it.
PARAMETERS = """  %x = f32[4,8] parameter(0){replicated}
  %ids = s32[4] parameter(1){replicated}
  %w = f32[6,8] parameter(2){replicated}
  %c0 = pred[4,8] parameter(3){replicated}
"""

# Angles position * 10000^(-2 k / 8), and what is computed of them.
ANGLES = """  %p = f32[4,8] iota(), iota_dimension=0
  %k = f32[4,8] iota(), iota_dimension=1
  %s = f32[] constant(-0.25)
  %sb = f32[4,8] broadcast(%s), dimensions={}
  %e = f32[4,8] multiply(%k, %sb)
  %t = f32[] constant(10000)
  %tb = f32[4,8] broadcast(%t), dimensions={}
  %f = f32[4,8] power(%tb, %e)
  %a = f32[4,8] multiply(%p, %f)
  %sin = f32[4,8] sine(%a)
  %cos = f32[4,8] cosine(%a)
"""
SQUARES = (
    ANGLES
    + """  %ss = f32[4,8] multiply(%sin, %sin)
  %cc = f32[4,8] multiply(%cos, %cos)
"""
)
# The ids as numbers, along the rows of x; as indices; as sums over one-hot rows.
NUMBERS = """  %n = f32[4] convert(%ids)
  %nb = f32[4,8] broadcast(%n), dimensions={0}
"""
LOOKED_UP = """  %index = s32[4,1] reshape(%ids)
  %rows = f32[4,8] gather(%w, %index), offset_dims={1}, collapsed_slice_dims={0}, \
start_index_map={0}, index_vector_dim=1, slice_sizes={1,8}
"""
ONE_HOT = """  %i6 = s32[4,6] iota(), iota_dimension=1
  %idsb = s32[4,6] broadcast(%ids), dimensions={0}
  %eq = pred[4,6] compare(%idsb, %i6), direction=EQ
  %hot = f32[4,6] convert(%eq)
  %v6 = f32[6] iota(), iota_dimension=0
  %m = f32[4] dot(%hot, %v6), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %mb = f32[4,8] broadcast(%m), dimensions={0}
"""
SAFE = """  %hundred = s32[] constant(-100)
  %hundreds = s32[4] broadcast(%hundred), dimensions={}
  %first = s32[] constant(0)
  %firsts = s32[4] broadcast(%first), dimensions={}
  %valid = pred[4] compare(%ids, %hundreds), direction=NE
  %safe = s32[4] select(%valid, %ids, %firsts)
"""
MOVED = """  %one = s32[] constant(1)
  %ones = s32[4] broadcast(%one), dimensions={}
  %more = s32[4] add(%ids, %ones)
"""


def choice(direction, type, left, bound, kept="%x"):
    """y = kept where left DIRECTION bound, 0 elsewhere."""
    return f"""  %bound = {type}[] constant({bound})
  %bounds = {type}[4] broadcast(%bound), dimensions={{}}
  %c = pred[4] compare({left}, %bounds), direction={direction}
  %cb = pred[4,8] broadcast(%c), dimensions={{0}}
  %zero = f32[] constant(0)
  %zeros = f32[4,8] broadcast(%zero), dimensions={{}}
  ROOT %y = f32[4,8] select(%cb, {kept}, %zeros)
"""


ROTATED = (
    ANGLES
    + """  %xr = f32[4,8] reverse(%x), dimensions={1}
  %xc = f32[4,8] multiply(%x, %cos)
  %xs = f32[4,8] multiply(%xr, %sin)
"""
)

# name: (model, plan, verdicts that are right)
CASES = {
    "sine and cosine of one angle": (
        "  ROOT %y = f32[4,8] copy(%x)\n",
        SQUARES + "  %u = f32[4,8] add(%ss, %cc)\n  ROOT %y = f32[4,8] multiply(%x, %u)\n",
        {EQUIVALENT, UNDECIDED},
    ),
    "twice the square of the cosine": (
        "  ROOT %y = f32[4,8] copy(%x)\n",
        SQUARES + "  %d = f32[4,8] add(%cc, %cc)\n  %u = f32[4,8] add(%ss, %d)\n"
        "  ROOT %y = f32[4,8] multiply(%x, %u)\n",
        {NOT_EQUIVALENT},
    ),
    "predicates, of which as many as are true are counted, or only whether one is": (
        "  %n0 = f32[4,8] convert(%c0)\n"
        "  %n = f32[4,4] dot(%n0, %n0), lhs_contracting_dims={1}, rhs_contracting_dims={1}\n"
        "  ROOT %y = f32[4,8] dot(%n, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n",
        "  %p = pred[4,4] dot(%c0, %c0), lhs_contracting_dims={1}, rhs_contracting_dims={1}\n"
        "  %n = f32[4,4] convert(%p)\n"
        "  ROOT %y = f32[4,8] dot(%n, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n",
        {REFUSED},
    ),
    "two rotations": (
        "  ROOT %y = f32[4,8] copy(%x)\n",
        ROTATED + "  %r = f32[4,8] add(%xc, %xs)\n  ROOT %y = f32[4,8] subtract(%r, %xs)\n",
        {NOT_EQUIVALENT},
    ),
    "a double angle": (
        SQUARES + "  %d = f32[4,8] subtract(%cc, %ss)\n  ROOT %y = f32[4,8] multiply(%x, %d)\n",
        ANGLES + "  %aa = f32[4,8] add(%a, %a)\n  %d = f32[4,8] cosine(%aa)\n"
        "  ROOT %y = f32[4,8] multiply(%x, %d)\n",
        {EQUIVALENT, UNDECIDED},
    ),
    "an angle of another position": (
        ANGLES + "  ROOT %y = f32[4,8] multiply(%x, %cos)\n",
        ANGLES + "  %b = f32[4,8] add(%a, %f)\n  %d = f32[4,8] cosine(%b)\n"
        "  ROOT %y = f32[4,8] multiply(%x, %d)\n",
        {NOT_EQUIVALENT},
    ),
    "sine in the place of cosine": (
        ROTATED + "  ROOT %y = f32[4,8] add(%xc, %xs)\n",
        ANGLES
        + "  %xr = f32[4,8] reverse(%x), dimensions={1}\n  %xc = f32[4,8] multiply(%x, %sin)\n"
        "  %xs = f32[4,8] multiply(%xr, %cos)\n  ROOT %y = f32[4,8] add(%xc, %xs)\n",
        {NOT_EQUIVALENT},
    ),
    "an index and its number": (
        LOOKED_UP
        + NUMBERS
        + "  %xn = f32[4,8] multiply(%x, %nb)\n  ROOT %y = f32[4,8] add(%xn, %rows)\n",
        LOOKED_UP
        + ONE_HOT
        + "  %xn = f32[4,8] multiply(%x, %mb)\n  ROOT %y = f32[4,8] add(%xn, %rows)\n",
        {NOT_EQUIVALENT},
    ),
    "an index and another number": (
        LOOKED_UP
        + NUMBERS
        + "  %xn = f32[4,8] multiply(%x, %nb)\n  ROOT %y = f32[4,8] add(%xn, %rows)\n",
        LOOKED_UP + ONE_HOT + "  %mm = f32[4,8] add(%mb, %mb)\n  %xn = f32[4,8] multiply(%x, %mm)\n"
        "  ROOT %y = f32[4,8] add(%xn, %rows)\n",
        {NOT_EQUIVALENT},
    ),
    "above 0 and above a half": (
        choice("GT", "s32", "%ids", "0"),
        NUMBERS + choice("GT", "f32", "%n", "0.5"),
        {EQUIVALENT, UNDECIDED},
    ),
    "above 0 and above one and a half": (
        choice("GT", "s32", "%ids", "0"),
        NUMBERS + choice("GT", "f32", "%n", "1.5"),
        {NOT_EQUIVALENT},
    ),
    "a number and one more": (
        NUMBERS + "  ROOT %y = f32[4,8] multiply(%x, %nb)\n",
        MOVED + "  %n = f32[4] convert(%more)\n  %nb = f32[4,8] broadcast(%n), dimensions={0}\n"
        "  ROOT %y = f32[4,8] multiply(%x, %nb)\n",
        {NOT_EQUIVALENT},
    ),
    "a condition and itself": (
        "  %z = f32[] constant(0)\n  %zs = f32[4,8] broadcast(%z), dimensions={}\n"
        "  ROOT %y = f32[4,8] select(%c0, %x, %zs)\n",
        "  %z = f32[] constant(0)\n  %zs = f32[4,8] broadcast(%z), dimensions={}\n"
        "  %cc = pred[4,8] and(%c0, %c0)\n  %one = f32[4,8] select(%cc, %x, %zs)\n"
        "  ROOT %y = f32[4,8] select(%c0, %one, %zs)\n",
        {EQUIVALENT},
    ),
    "a condition and its opposite": (
        "  %z = f32[] constant(0)\n  %zs = f32[4,8] broadcast(%z), dimensions={}\n"
        "  ROOT %y = f32[4,8] select(%c0, %x, %zs)\n",
        "  %z = f32[] constant(0)\n  %zs = f32[4,8] broadcast(%z), dimensions={}\n"
        "  %n = pred[4,8] not(%c0)\n  ROOT %y = f32[4,8] select(%n, %x, %zs)\n",
        {NOT_EQUIVALENT},
    ),
    # Of labels that are indices, or -100: what lies between counts in neither program.
    "left out and below": (
        LOOKED_UP.replace("%ids", "%safe").join(
            [SAFE, choice("NE", "s32", "%ids", "-100", "%rows")]
        ),
        LOOKED_UP.replace("%ids", "%safe").join(
            [SAFE, choice("GT", "s32", "%ids", "-50", "%rows")]
        ),
        {NOT_EQUIVALENT},
    ),
    "left out and above 0": (
        LOOKED_UP.replace("%ids", "%safe").join(
            [SAFE, choice("NE", "s32", "%ids", "-100", "%rows")]
        ),
        LOOKED_UP.replace("%ids", "%safe").join([SAFE, choice("GT", "s32", "%ids", "0", "%rows")]),
        {NOT_EQUIVALENT},
    ),
}

# Choices of which one branch need not have a value: n is any number, and where it is not positive x
# / n and its logarithm do not count.
POSITIVE = """  %n = f32[4,8] slice(%w), slice={[0:4], [0:8]}
  %z = f32[] constant(0)
  %zs = f32[4,8] broadcast(%z), dimensions={}
  %u = f32[] constant(1)
  %us = f32[4,8] broadcast(%u), dimensions={}
  %c = pred[4,8] compare(%n, %zs), direction=GT
  %cn = f32[4,8] convert(%c)
"""
SAFELY = POSITIVE + "  %m = f32[4,8] select(%c, %n, %us)\n"
CHOSEN, MULTIPLIED = (
    "  ROOT %y = f32[4,8] select(%c, %q, %zs)\n",
    "  ROOT %y = f32[4,8] multiply(%cn, %q)\n",
)
for what, of in {"quotient": "divide(%x, {})", "logarithm": "log({})"}.items():
    taken, safely = f"  %q = f32[4,8] {of.format('%n')}\n", f"  %q = f32[4,8] {of.format('%m')}\n"
    CASES[f"a {what} that is chosen"] = (
        POSITIVE + taken + CHOSEN,
        POSITIVE + taken + CHOSEN,
        {EQUIVALENT},
    )
    CASES[f"a {what} times a condition"] = (
        POSITIVE + taken + CHOSEN,
        POSITIVE + taken + MULTIPLIED,
        {NOT_EQUIVALENT, UNDECIDED},
    )
    CASES[f"a safe {what}"] = (SAFELY + safely + CHOSEN, SAFELY + safely + CHOSEN, {EQUIVALENT})
    CASES[f"a {what} that is safe and one that is chosen"] = (
        POSITIVE + taken + CHOSEN,
        SAFELY + safely + CHOSEN,
        {EQUIVALENT, UNDECIDED},
    )
    CASES[f"a safe {what} times a condition"] = (
        POSITIVE + taken + CHOSEN,
        SAFELY + safely + MULTIPLIED,
        {EQUIVALENT, UNDECIDED},
    )
    CASES[f"a {what} where it is not safe"] = (
        POSITIVE + taken + CHOSEN,
        POSITIVE + taken + CHOSEN.replace("%q, %zs", "%zs, %q"),
        {NOT_EQUIVALENT, UNDECIDED},
    )

# Where there is no value it is not above 0 either, and minus infinity times a condition is none.
DOUBLED = (
    "  %two = f32[] constant(2)\n  %twos = f32[4,8] broadcast(%two), dimensions={}\n"
    "  %xx = f32[4,8] multiply(%x, %twos)\n"
)
ZEROS = "  %z = f32[] constant(0)\n  %zs = f32[4,8] broadcast(%z), dimensions={}\n"
NUMBER = "  %n = f32[4,8] slice(%w), slice={[0:4], [0:8]}\n"
ITSELF = "  ROOT %y = f32[4,8] copy(%x)\n"
for name, of, direction in (
    ("a root", "rsqrt(%n)", "GT"),
    ("a logarithm's exponential", "power(%n, %x)", "GE"),
):
    compared = (
        NUMBER + f"  %r = f32[4,8] {of}\n  %c = pred[4,8] compare(%r, %zs), direction={direction}\n"
        f"  ROOT %y = f32[4,8] select(%c, %x, %xx)\n"
    )
    CASES[f"chosen by the sign of {name}"] = (
        ITSELF,
        ZEROS + DOUBLED + compared,
        {NOT_EQUIVALENT, UNDECIDED},
    )
CASES["the sign of a root"] = (
    ITSELF,
    NUMBER + "  %r = f32[4,8] rsqrt(%n)\n  %s = f32[4,8] sign(%r)\n"
    "  ROOT %y = f32[4,8] multiply(%x, %s)\n",
    {NOT_EQUIVALENT, UNDECIDED},
)
CASES["the sign of an exponential"] = (
    ITSELF,
    NUMBER + "  %r = f32[4,8] exponential(%n)\n  %s = f32[4,8] sign(%r)\n"
    "  ROOT %y = f32[4,8] multiply(%x, %s)\n",
    {EQUIVALENT},
)
# A softmax over the positions before each: the first row has none.
MASKED = (
    ZEROS
    + """  %i = s32[4,8] iota(), iota_dimension=0
  %j = s32[4,8] iota(), iota_dimension=1
  %m = pred[4,8] compare(%i, %j), direction=GT
  %ninf = f32[] constant(-inf)
  %ni = f32[4,8] broadcast(%ninf), dimensions={}
  %e = f32[4,8] exponential(%masked)
  %sum = f32[4] reduce(%e, %z), dimensions={1}, to_apply=%plus
  %sb = f32[4,8] broadcast(%sum), dimensions={0}
  %q = f32[4,8] divide(%e, %sb)
  %first = s32[] constant(0)
  %firsts = s32[4,8] broadcast(%first), dimensions={}
  %c = pred[4,8] compare(%i, %firsts), direction=GT
  %cn = f32[4,8] convert(%c)
""".replace("  %e =", "  %masked = f32[4,8] select(%m, %x, %ni)\n  %e =")
)
CASES["rows that are chosen, as the first is masked"] = (
    MASKED + CHOSEN,
    MASKED + CHOSEN,
    {EQUIVALENT},
)
CASES["rows times a condition, as the first is masked"] = (
    MASKED + CHOSEN,
    MASKED + MULTIPLIED,
    {NOT_EQUIVALENT, UNDECIDED},
)
CASES["masked by a condition of the input"] = (
    ZEROS + NUMBER + "  %e = f32[4,8] exponential(%n)\n  ROOT %y = f32[4,8] select(%c0, %e, %zs)\n",
    NUMBER + "  %ninf = f32[] constant(-inf)\n  %ni = f32[4,8] broadcast(%ninf), dimensions={}\n"
    "  %s = f32[4,8] select(%c0, %n, %ni)\n"
    "  ROOT %y = f32[4,8] exponential(%s)\n",
    {EQUIVALENT, UNDECIDED},
)
CASES["places counted in eight bits"] = (
    "  %k = f32[] constant(260)\n  %ks = f32[4,8] broadcast(%k), dimensions={}\n"
    "  ROOT %y = f32[4,8] add(%x, %ks)\n",
    "  %i = u8[300] iota(), iota_dimension=0\n  %s = u8[1] slice(%i), slice={[260:261]}\n"
    "  %r = u8[] reshape(%s)\n  %k = f32[] convert(%r)\n"
    "  %ks = f32[4,8] broadcast(%k), dimensions={}\n  ROOT %y = f32[4,8] add(%x, %ks)\n",
    {NOT_EQUIVALENT},
)
# A number that does not fit the type becomes its greatest or least integer.
LARGER = "  %n = f32[] constant(200)\n  %n2 = f32[4,8] broadcast(%n), dimensions={}\n"
LARGER += "  %z = f32[4,8] multiply(%x, %n2)\n"
for name, (low, high, to, codes) in {
    "a number made an integer of eight bits": (-128, 127, "s8", {EQUIVALENT}),
    "a number made an integer of 16 bits": (-128, 127, "s16", {NOT_EQUIVALENT}),
    "a number made an unsigned integer": (0, 255, "u8", {EQUIVALENT}),
    "a number made an unsigned integer, its sign lost": (-128, 255, "u8", {NOT_EQUIVALENT}),
}.items():
    CASES[name] = (
        f"{LARGER}  %low = f32[] constant({low})\n  %high = f32[] constant({high})\n"
        "  %held = f32[4,8] clamp(%low, %z, %high)\n"
        "  %t = s32[4,8] convert(%held)\n  ROOT %y = f32[4,8] convert(%t)\n",
        f"{LARGER}  %t = {to}[4,8] convert(%z)\n  ROOT %y = f32[4,8] convert(%t)\n",
        codes,
    )


def held(low, high, of, to):
    """y = the whole part of x between two bounds, as an integer of a type."""
    return (
        f"  %low = f32[] constant({low})\n  %high = f32[] constant({high})\n"
        f"  %held = f32[4,8] clamp(%low, %{of}, %high)\n"
        f"  %t = {to}[4,8] convert(%held)\n  ROOT %y = f32[4,8] convert(%t)\n"
    )


# Bounds show that it fits: quantised numbers.
for name, plan, codes in (
    ("an integer of eight bits, clamped", held(-127, 127, "x", "s8"), {EQUIVALENT}),
    ("an integer of eight bits, clamped elsewhere", held(1, 127, "x", "s8"), {NOT_EQUIVALENT}),
    ("an integer of eight bits, clamped too far", held(-127, 128, "x", "s8"), {EQUIVALENT}),
    ("an integer of four bits, clamped", held(-127, 127, "x", "s4"), {UNDECIDED, NOT_EQUIVALENT}),
):
    CASES[name] = (held(-127, 127, "x", "s32"), plan, codes)
for bits in (8, 16):
    CASES[f"places in {bits} bits"] = (
        NUMBERS + "  ROOT %y = f32[4,8] multiply(%x, %nb)\n",
        f"  %c = s{bits}[4] convert(%ids)\n  %d = s32[4] convert(%c)\n"
        + NUMBERS.replace("%ids", "%d")
        + "  ROOT %y = f32[4,8] multiply(%x, %nb)\n",
        {REFUSED},
    )
    CASES[f"sums of places in {bits} bits"] = (
        MOVED
        + NUMBERS.replace("%ids", "%sum").join(
            ["  %sum = s32[4] multiply(%ids, %ids)\n", "  ROOT %y = f32[4,8] multiply(%x, %nb)\n"]
        ),
        f"  %s = s32[4] multiply(%ids, %ids)\n  %c = s{bits}[4] convert(%s)\n"
        f"  %sum = s32[4] convert(%c)\n"
        + NUMBERS.replace("%ids", "%sum")
        + "  ROOT %y = f32[4,8] multiply(%x, %nb)\n",
        {REFUSED},
    )

# What is taken at a place needs a value, what is not taken need not. All of a product must have
# one.
LOGARITHM = ZEROS + "  %l = f32[4,8] log(%x)\n"
PLACE = (
    "  %i1 = s32[1] slice(%ids), slice={[0:1]}\n  %at = s32[] reshape(%i1)\n"
    "  %o = s32[] constant(0)\n"
)
WITHIN = (
    PLACE + "  %three = s32[] constant(3)\n  %place = s32[] clamp(%o, %at, %three)\n"
    "  %it = s32[4] iota(), iota_dimension=0\n"
    "  %places = s32[4] broadcast(%place), dimensions={}\n"
    "  %eq = pred[4] compare(%it, %places), direction=EQ\n  %f = f32[4] convert(%eq)\n"
)
HALF = "  %half = f32[4,4] slice(%l), slice={[0:4], [0:4]}\n"
UPDATE = "  %u = f32[1,8] slice(%w), slice={[0:1], [0:8]}\n"
for name, (taken, multiplied) in {
    "an element of each row": (
        "  %index = s32[4,1] reshape(%ids)\n"
        "  %g = f32[4] gather(%l, %index), offset_dims={}, collapsed_slice_dims={1}, "
        "start_index_map={1}, index_vector_dim=1, "
        "operand_batching_dims={0}, start_indices_batching_dims={0}, slice_sizes={1,1}\n"
        "  ROOT %y = f32[4,8] broadcast(%g), dimensions={0}\n",
        "  %lo = s32[] constant(0)\n  %hi = s32[] constant(7)\n"
        "  %held = s32[4] clamp(%lo, %ids, %hi)\n"
        "  %it = s32[4,8] iota(), iota_dimension=1\n"
        "  %idsb = s32[4,8] broadcast(%held), dimensions={0}\n"
        "  %eq = pred[4,8] compare(%it, %idsb), direction=EQ\n"
        "  %f = f32[4,8] convert(%eq)\n  %p = f32[4,8] multiply(%f, %l)\n"
        "  %g = f32[4] reduce(%p, %z), dimensions={1}, to_apply=%plus\n"
        "  ROOT %y = f32[4,8] broadcast(%g), dimensions={0}\n",
    ),
    "a row": (
        PLACE + "  %d = f32[1,8] dynamic-slice(%l, %at, %o), dynamic_slice_sizes={1,8}\n"
        "  %r = f32[8] reshape(%d)\n  ROOT %y = f32[4,8] broadcast(%r), dimensions={1}\n",
        WITHIN + "  %r = f32[8] dot(%f, %l), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
        "  ROOT %y = f32[4,8] broadcast(%r), dimensions={1}\n",
    ),
    "all rows but one": (
        PLACE + UPDATE + "  ROOT %y = f32[4,8] dynamic-update-slice(%l, %u, %at, %o)\n",
        WITHIN
        + UPDATE
        + "  %fb = f32[4,8] broadcast(%f), dimensions={0}\n  %one = f32[] constant(1)\n"
        "  %ones = f32[4,8] broadcast(%one), dimensions={}\n"
        "  %n = f32[4,8] subtract(%ones, %fb)\n"
        "  %kept = f32[4,8] multiply(%n, %l)\n  %u1 = f32[8] reshape(%u)\n"
        "  %ub = f32[4,8] broadcast(%u1), dimensions={1}\n  %new = f32[4,8] multiply(%fb, %ub)\n"
        "  ROOT %y = f32[4,8] add(%kept, %new)\n",
    ),
    "rows that are added up": (
        "  %index = s32[4,1] reshape(%ids)\n"
        "  ROOT %y = f32[4,8] scatter(%zs, %index, %l), update_window_dims={1}, "
        "inserted_window_dims={0}, "
        "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=%plus\n",
        "  %it = s32[4,4] iota(), iota_dimension=1\n"
        "  %idsb = s32[4,4] broadcast(%ids), dimensions={0}\n"
        "  %eq = pred[4,4] compare(%it, %idsb), direction=EQ\n"
        "  %f = f32[4,4] convert(%eq)\n"
        "  ROOT %y = f32[4,8] dot(%f, %l), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n",
    ),
    "one element of each window": (
        "  ROOT %y = f32[4,8] select-and-scatter(%x, %half, %z), window={size=1x2 stride=1x2}, "
        "select=%ge, scatter=%plus\n".join([HALF, ""]),
        HALF + "  %one = f32[] constant(1)\n  %ones = f32[4,4] broadcast(%one), dimensions={}\n"
        "  %s = f32[4,8] select-and-scatter(%x, %ones, %z), window={size=1x2 stride=1x2}, "
        "select=%ge, scatter=%plus\n"
        "  %hb = f32[4,4,2] broadcast(%half), dimensions={0,1}\n  %hr = f32[4,8] reshape(%hb)\n"
        "  ROOT %y = f32[4,8] multiply(%s, %hr)\n",
    ),
}.items():
    # Of what has values for all inputs the product is the same.
    CASES[f"{name}, taken"] = (LOGARITHM + taken, LOGARITHM + taken, {EQUIVALENT})
    CASES[f"{name}, multiplied"] = (
        LOGARITHM + taken,
        LOGARITHM + multiplied,
        {NOT_EQUIVALENT, UNDECIDED},
    )
    CASES[f"{name} of numbers, multiplied"] = (
        LOGARITHM + taken.replace("%l", "%x"),
        LOGARITHM + multiplied.replace("%l", "%x"),
        {EQUIVALENT},
    )

# Each device moves the indices by its own number before all are gathered: those of the second
# device are moved by 1.
SHIFTED = """  %pid = u32[] partition-id()
  %own = s32[] convert(%pid)
  %owns = s32[4] broadcast(%own), dimensions={}
  %shifted = s32[4] add(%ids, %owns)
  %all = s32[8] all-gather(%shifted), channel_id=1, replica_groups={{0,1}}, \
dimensions={0}, use_global_device_ids=true
  %second = s32[4] slice(%all), slice={[4:8]}
"""
ROWS = LOOKED_UP.replace("%rows =", "ROOT %y =")
CASES["indices that each device moved"] = (
    ROWS,
    SHIFTED + MOVED + "  %back = s32[4] subtract(%second, %owns)\n" + ROWS.replace("%ids", "%back"),
    {NOT_EQUIVALENT},
)
CASES["indices that the second device moved"] = (
    ROWS,
    SHIFTED + MOVED + "  %back = s32[4] subtract(%second, %ones)\n" + ROWS.replace("%ids", "%back"),
    {EQUIVALENT, UNDECIDED},
)


# What is computed of the ids is looked up; numbers alike for all are %n1, %n2, ...
def looked_up(body):
    numbers = "".join(
        f"  %s{n} = s32[] constant({n})\n  %n{n} = s32[4] broadcast(%s{n}), dimensions={{}}\n"
        for n in sorted({int(n) for n in re.findall(r"%n([0-9]+)", body)})
    )
    return numbers + body + ROWS.replace("%ids", "%k")


BITS = "  %c = pred[4] compare(%ids, %n3), direction=LT\n  %s = s32[4] select(%c, %n3, %n4)\n"
TWO = (
    "  %c = pred[4] compare(%ids, %n3), direction=LT\n"
    "  %d = pred[4] compare(%ids, %n5), direction=LT\n"
)
IN_WINDOW = """  %low = pred[4] compare(%ids, %n4), direction=GE
  %high = pred[4] compare(%ids, %n9), direction=LT
  %in = pred[4] and(%low, %high)
  %s = s32[4] subtract(%ids, %n4)
  %k = s32[4] select(%in, %s, %n0)
"""
for name, (single, parallel, expected) in {
    # Bits of integers are no products, and of conditions a sum is "or".
    "the last bit of an index": (
        "  %k = s32[4] and(%ids, %n1)\n",
        "  %k = s32[4] copy(%ids)\n",
        {REFUSED, UNDECIDED, NOT_EQUIVALENT},
    ),
    "bits of two numbers": (
        BITS + "  %k = s32[4] or(%s, %n4)\n",
        "  %k = s32[4] copy(%n1)\n",
        {REFUSED, UNDECIDED, NOT_EQUIVALENT},
    ),
    "all bits turned": (
        BITS + "  %m = s32[4] negate(%s)\n  %k = s32[4] not(%m)\n",
        BITS + "  %k = s32[4] add(%s, %n1)\n",
        {REFUSED, UNDECIDED, NOT_EQUIVALENT},
    ),
    "a sum of conditions": (
        TWO + "  %e = pred[4] add(%c, %d)\n  %k = s32[4] convert(%e)\n",
        TWO + "  %k = s32[4] convert(%d)\n",
        {EQUIVALENT},
    ),
    "a sum of conditions as numbers": (
        TWO + "  %e = pred[4] add(%c, %d)\n  %k = s32[4] convert(%e)\n",
        TWO + "  %a = s32[4] convert(%c)\n  %b = s32[4] convert(%d)\n  %k = s32[4] add(%a, %b)\n",
        {NOT_EQUIVALENT},
    ),
    "an index in a type that it does not fit": (
        "  %k = s32[4] copy(%ids)\n",
        "  %t = s2[4] convert(%ids)\n  %k = s32[4] convert(%t)\n",
        {REFUSED, UNDECIDED, NOT_EQUIVALENT},
    ),
    "moved before the last row": (
        "  %k = s32[4] clamp(%n0, %ids, %n3)\n",
        "  %k = s32[4] copy(%ids)\n",
        {NOT_EQUIVALENT},
    ),
    "moved before the last row, another one there": (
        "  %k = s32[4] clamp(%n0, %ids, %n3)\n",
        "  %c = pred[4] compare(%ids, %n5), direction=LT\n  %m = s32[4] clamp(%n0, %ids, %n3)\n"
        "  %k = s32[4] select(%c, %m, %n2)\n",
        {NOT_EQUIVALENT},
    ),
    "moved to the last row": (
        "  %k = s32[4] clamp(%n0, %ids, %n5)\n",
        "  %k = s32[4] copy(%ids)\n",
        {EQUIVALENT},
    ),
    # What is looked up at ids - 2 lies in bounds for ids up to 7; and so on.
    "moved into bounds": (
        "  %s = s32[4] subtract(%ids, %n2)\n  %k = s32[4] clamp(%n0, %s, %n5)\n",
        "  %s = s32[4] subtract(%ids, %n2)\n  %k = s32[4] clamp(%n0, %s, %n3)\n",
        {NOT_EQUIVALENT},
    ),
    "counted from 1": (
        "  %k = s32[4] subtract(%ids, %n1)\n",
        "  %s = s32[4] subtract(%ids, %n1)\n  %k = s32[4] minimum(%s, %n4)\n",
        {NOT_EQUIVALENT},
    ),
    "counted from 1 twice": (
        "  %k = s32[4] subtract(%ids, %n1)\n",
        "  %s = s32[4] subtract(%ids, %n2)\n  %k = s32[4] add(%s, %n1)\n",
        {EQUIVALENT},
    ),
    "counted from -1": (
        "  %k = s32[4] add(%ids, %n1)\n",
        "  %s = s32[4] add(%ids, %n1)\n  %k = s32[4] maximum(%s, %n1)\n",
        {NOT_EQUIVALENT},
    ),
    "one of two rows": (
        "  %c = pred[4] compare(%ids, %n30), direction=LT\n  %k = s32[4] select(%c, %n5, %n3)\n",
        "  %k = s32[4] copy(%n5)\n",
        {NOT_EQUIVALENT},
    ),
    "a window": (IN_WINDOW, IN_WINDOW.replace("%n9", "%n8"), {NOT_EQUIVALENT}),
    "a window in two steps": (
        IN_WINDOW,
        IN_WINDOW.replace(
            "%s = s32[4] subtract(%ids, %n4)",
            "%m = s32[4] subtract(%ids, %n3)\n  %s = s32[4] subtract(%m, %n1)",
        ),
        {EQUIVALENT},
    ),
}.items():
    CASES[name] = (looked_up(single), looked_up(parallel), expected)


PLUS = """%plus (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

%ge (a: f32[], b: f32[]) -> pred[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = pred[] compare(%a, %b), direction=GE
}

"""


def program(body, devices):
    header = "HloModule jit_f" + (f", num_partitions={devices}" if devices > 1 else "")
    sharding = ", sharding={replicated}" if devices > 1 else ""
    body = PARAMETERS.replace("{replicated}", sharding) + body
    if sharding:
        body = "\n".join(line + sharding if "ROOT" in line else line for line in body.split("\n"))
    return (
        f"{header}\n\n"
        f"{PLUS}ENTRY %main (x: f32[4,8], ids: s32[4], w: f32[6,8], c0: pred[4,8]) -> f32[4,8] "
        f"{{\n{body}}}\n"
    )


def main():
    shardproof = os.path.abspath(sys.argv[1])
    failed = False
    with tempfile.TemporaryDirectory() as directory:
        model, plan = (os.path.join(directory, n) for n in ("model.hlo", "plan.hlo"))
        for name, (single, parallel, expected) in CASES.items():
            for path, text in ((model, program(single, 1)), (plan, program(parallel, 2))):
                with open(path, "w") as file:
                    file.write(text)
            done = subprocess.run(
                [
                    shardproof,
                    "verify",
                    *NO_CAUSES,
                    "-j",
                    "1",
                    "--stage-timeout",
                    "10",
                    "--model",
                    model,
                    "--plan",
                    plan,
                ],
                capture_output=True,
                text=True,
            )
            right = done.returncode in expected
            print(
                f"{name}: exit code {done.returncode}"
                + (
                    ""
                    if right
                    else f", expected one of {sorted(expected)}\n{done.stdout}{done.stderr}"
                )
            )
            failed = failed or not right
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
