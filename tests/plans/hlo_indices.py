#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Indices out of bounds or negative, and integers that overflow, where HLO defines the result.

Each opcode that takes indices has a model, right plans for two devices, and wrong plans. Those are
wrong only for indices out of bounds: another clamping, another wrapping, an update that is left
out.

hlo_indices.py PROGRAM: shardproof's path.
"""

import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from plan_edit import NO_CAUSES

EQUIVALENT, REFUSED, UNDECIDED, NOT_EQUIVALENT = 0, 2, 5, 10
# What is assumed could hide a bug: the verdict is conditional.
EQUIVALENT_IF = {4}

# name: (the model's type, the plan's type, the plan's sharding)
PARAMETERS = {
    "x": ("f32[2,8]", "f32[2,4]", "{devices=[1,2]<=[2]}"),  # along its columns
    "u": ("f32[2,1]", "f32[2,1]", "{replicated}"),
    "u3": ("f32[2,3]", "f32[2,3]", "{replicated}"),
    "w": ("f32[8,3]", "f32[4,3]", "{devices=[2,1]<=[2]}"),  # along its rows
    "g": ("f32[5,3]", "f32[5,3]", "{replicated}"),
    "i": ("s32[]", "s32[]", "{replicated}"),
    "k": ("s32[]", "s32[]", "{replicated}"),
    "ids": ("s32[5]", "s32[5]", "{replicated}"),
    "t": ("s8[5]", "s8[5]", "{replicated}"),
}
RESULTS = {
    "columns": ("f32[2,8]", "f32[2,4]", "{devices=[1,2]<=[2]}"),
    "rows": ("f32[8,3]", "f32[4,3]", "{devices=[2,1]<=[2]}"),
    "found": ("f32[5,3]", "f32[5,3]", "{replicated}"),
    "window": ("f32[2,3]", "f32[2,3]", "{replicated}"),
}
REGIONS = """%plus (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

%second (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  ROOT %b = f32[] parameter(1)
}

"""
# The first column, or row, of each device.
DEVICE = """  %id = u32[] partition-id()
  %number = s32[] convert(%id)
  %at = s32[] multiply(%number, %n4)
  %end = s32[] add(%at, %n4)
"""
# A negative index counts from the end.
WRAP = """  %negative = pred[] compare(%i, %n0), direction=LT
  %more = s32[] add(%i, %n8)
  %s = s32[] select(%negative, %more, %i)
"""
MULTIPLE = "  %s = s32[] multiply(%i, %n3)\n"
ROWS = (
    "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, "
    "slice_sizes={1,3}"
)
INTO = (
    "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
    "index_vector_dim=1"
)


def plain(start="%i"):
    return f"  %s = s32[] copy({start})\n"


def own_column(start, least="%at", end="%end"):
    """Whether a device has the column, and which of its own it is."""
    return f"""  %above = pred[] compare({start}, {least}), direction=GE
  %below = pred[] compare({start}, {end}), direction=LT
  %in = pred[] and(%above, %below)
  %moved = s32[] subtract({start}, %at)
  %local = s32[] select(%in, %moved, %n0)
"""


UPDATE = "  ROOT %y = f32[2,8] dynamic-update-slice(%x, %u, %n0, %s)\n"
OWN_UPDATE = """  %made = f32[2,4] dynamic-update-slice(%x, %u, %n0, %local)
  %all = pred[2,4] broadcast(%in), dimensions={}
  ROOT %y = f32[2,4] select(%all, %made, %x)
"""
CLAMPED = "  %c = s32[] clamp(%n0, %s, %n7)\n"
WHOLE = (
    "  %xs = f32[2,8] all-gather(%x), channel_id=1, replica_groups={{0,1}}, dimensions={1}, "
    "use_global_device_ids=true\n"
)
WINDOW = "  ROOT %y = f32[2,3] dynamic-slice(%x, %n0, %s), dynamic_slice_sizes={2,3}\n"
OWN_WINDOW = WHOLE + "  ROOT %y = f32[2,3] dynamic-slice(%xs, %n0, %s), dynamic_slice_sizes={2,3}\n"
OWN_WIDE_UPDATE = (
    WHOLE + "  %made = f32[2,8] dynamic-update-slice(%xs, %u3, %n0, %s)\n"
    "  ROOT %y = f32[2,4] dynamic-slice(%made, %n0, %at), dynamic_slice_sizes={2,4}\n"
)


def numbers(n, name="ids", size=5):
    return f"  %b{n} = s32[{size}] broadcast(%n{n}), dimensions={{}}\n"


# Rows of w by ids, which are moved into bounds. Where they are out of bounds: not a number, or not
# looked up at all.
LOOKUP = f"  %index = s32[5,1] reshape(%ids)\n  ROOT %y = f32[5,3] gather(%w, %index), {ROWS}\n"
INSIDE = (
    numbers(0)
    + numbers(7)
    + """  %low = pred[5] compare(%ids, %b0), direction=GE
  %high = pred[5] compare(%ids, %b7), direction=LE
  %valid = pred[5] and(%low, %high)
  %valids = pred[5,3] broadcast(%valid), dimensions={0}
"""
)
FILLED = (
    INSIDE
    + f"""  %index = s32[5,1] reshape(%ids)
  %rows = f32[5,3] gather(%w, %index), {ROWS}
  %none = f32[] constant(nan)
  %nones = f32[5,3] broadcast(%none), dimensions={{}}
  ROOT %y = f32[5,3] select(%valids, %rows, %nones)
"""
)


def own_rows(ids="%ids", sum="ROOT %y"):
    """Of a device's rows those that it has; the others are zeros, and are added."""
    return f"""  %ats = s32[5] broadcast(%at), dimensions={{}}
  %ends = s32[5] broadcast(%end), dimensions={{}}
  %above = pred[5] compare({ids}, %ats), direction=GE
  %below = pred[5] compare({ids}, %ends), direction=LT
  %in = pred[5] and(%above, %below)
  %local = s32[5] subtract({ids}, %ats)
  %index = s32[5,1] reshape(%local)
  %rows = f32[5,3] gather(%w, %index), {ROWS}
  %ins = pred[5,3] broadcast(%in), dimensions={{0}}
  %zero = f32[] constant(0)
  %zeros = f32[5,3] broadcast(%zero), dimensions={{}}
  %mine = f32[5,3] select(%ins, %rows, %zeros)
  {sum} = f32[5,3] all-reduce(%mine), channel_id=1, replica_groups={{{{0,1}}}}, \
use_global_device_ids=true, to_apply=%plus
"""


BOUNDED = numbers(0) + numbers(7) + "  %bounded = s32[5] clamp(%b0, %ids, %b7)\n"
WRAPPED = (
    numbers(0)
    + numbers(8)
    + """  %negative = pred[5] compare(%ids, %b0), direction=LT
  %more = s32[5] add(%ids, %b8)
  %wrapped = s32[5] select(%negative, %more, %ids)
"""
)
NANS = """  %none = f32[] constant(nan)
  %nones = f32[5,3] broadcast(%none), dimensions={}
  ROOT %y = f32[5,3] select(%valids, %found, %nones)
"""


def added(ids="%ids", operand="%w", rows=8, region="plus"):
    return (
        f"  %to = s32[5,1] reshape({ids})\n"
        f"  ROOT %y = f32[{rows},3] scatter({operand}, %to, %g), {INTO}, to_apply=%{region}\n"
    )


def one_set(start, rows):
    """One row takes the place of the one that the index names."""
    return (
        f"  %row = f32[1,3] slice(%g), slice={{[0:1], [0:3]}}\n  %to = s32[1,1] reshape({start})\n"
        f"  ROOT %y = f32[{rows},3] scatter(%w, %to, %row), {INTO}, to_apply=%second\n"
    )


OWN_START = "  %local = s32[] subtract(%s, %at)\n"
LOCAL_IDS = (
    "  %ats = s32[5] broadcast(%at), dimensions={}\n  %local = s32[5] subtract(%ids, %ats)\n"
)
KEEP = """  %cs = pred[2,{n}] broadcast(%c), dimensions={{}}
  %zero = f32[] constant(0)
  %zeros = f32[2,{n}] broadcast(%zero), dimensions={{}}
  ROOT %y = f32[2,{n}] select(%cs, %x, %zeros)
"""


def keep(condition, n):
    return condition + KEEP.format(n=n)


SUCCESSOR = "  %more = s32[] add(%i, %n1)\n  %c = pred[] compare(%more, %i), direction=GT\n"
TOTAL = "  %total = s32[] add(%i, %k)\n  %c = pred[] compare(%total, %n0), direction=GT\n"
IN_BYTES = (
    "  %least = s32[] constant(-100)\n  %most = s32[] constant(100)\n"
    "  %inside = s32[] clamp(%least, %i, %most)\n  %beside = s32[] clamp(%least, %k, %most)\n"
    "  %first = s8[] convert(%inside)\n  %second = s8[] convert(%beside)\n"
    "  %total = s8[] add(%first, %second)\n  %zero8 = s8[] constant(0)\n"
    "  %c = pred[] compare(%total, %zero8), direction=GT\n"
)

# name: (result, model, plan, verdicts that are right)
CASES = {
    # dynamic-update-slice moves the start into bounds.
    "update, clamped first": (
        "columns",
        WRAP + UPDATE,
        WRAP + DEVICE + CLAMPED + own_column("%c") + OWN_UPDATE,
        {EQUIVALENT},
    ),
    "update, dropped where out of bounds": (
        "columns",
        WRAP + UPDATE,
        WRAP + DEVICE + own_column("%s") + OWN_UPDATE,
        {NOT_EQUIVALENT},
    ),
    "update, clamped by each device": (
        "columns",
        WRAP + UPDATE,
        WRAP + DEVICE + "  %moved = s32[] subtract(%s, %at)\n"
        "  ROOT %y = f32[2,4] dynamic-update-slice(%x, %u, %n0, %moved)\n",
        {NOT_EQUIVALENT},
    ),
    "update, one bound too early": (
        "columns",
        WRAP + UPDATE,
        WRAP + DEVICE + "  %c = s32[] clamp(%n0, %s, %n6)\n" + own_column("%c") + OWN_UPDATE,
        {NOT_EQUIVALENT},
    ),
    "update, not wrapped": (
        "columns",
        WRAP + UPDATE,
        plain() + DEVICE + CLAMPED + own_column("%c") + OWN_UPDATE,
        {NOT_EQUIVALENT},
    ),
    "update, wrapped although the model does not": (
        "columns",
        plain() + UPDATE,
        WRAP + DEVICE + CLAMPED + own_column("%c") + OWN_UPDATE,
        {NOT_EQUIVALENT},
    ),
    "update, wrapped by another size": (
        "columns",
        WRAP + UPDATE,
        WRAP.replace("%n8", "%n9") + DEVICE + CLAMPED + own_column("%c") + OWN_UPDATE,
        {NOT_EQUIVALENT},
    ),
    "update, clamped instead of wrapped": (
        "columns",
        WRAP + UPDATE,
        "  %s = s32[] maximum(%i, %n0)\n" + DEVICE + CLAMPED + own_column("%c") + OWN_UPDATE,
        {NOT_EQUIVALENT},
    ),
    "update, clamped in the model": (
        "columns",
        "  %s = s32[] clamp(%n0, %i, %n7)\n" + UPDATE,
        "  %s = s32[] clamp(%n0, %i, %n7)\n" + DEVICE + own_column("%s") + OWN_UPDATE,
        {EQUIVALENT},
    ),
    "update, a comparison of the model exchanged": (
        "columns",
        WRAP.replace("direction=LT", "direction=GE") + UPDATE,
        WRAP + DEVICE + CLAMPED + own_column("%c") + OWN_UPDATE,
        {NOT_EQUIVALENT},
    ),
    "update, another comparison of the model exchanged": (
        "columns",
        WRAP.replace("direction=LT", "direction=LE") + UPDATE,
        WRAP + DEVICE + CLAMPED + own_column("%c") + OWN_UPDATE,
        {NOT_EQUIVALENT},
    ),
    "wide update": (
        "columns",
        WRAP + UPDATE.replace("%u,", "%u3,"),
        WRAP + DEVICE + OWN_WIDE_UPDATE,
        {EQUIVALENT},
    ),
    "wide update, clamped as one column": (
        "columns",
        WRAP + UPDATE.replace("%u,", "%u3,"),
        WRAP + DEVICE + CLAMPED + OWN_WIDE_UPDATE.replace("%n0, %s", "%n0, %c"),
        {EQUIVALENT},
    ),
    "wide update, moved to the left": (
        "columns",
        WRAP + UPDATE.replace("%u,", "%u3,"),
        WRAP
        + DEVICE
        + "  %c = s32[] minimum(%s, %n4)\n"
        + OWN_WIDE_UPDATE.replace("%n0, %s", "%n0, %c"),
        {NOT_EQUIVALENT},
    ),
    "update at a multiple": (
        "columns",
        MULTIPLE + UPDATE,
        MULTIPLE + DEVICE + CLAMPED + own_column("%c") + OWN_UPDATE,
        {EQUIVALENT},
    ),
    "update at another multiple": (
        "columns",
        MULTIPLE + UPDATE,
        MULTIPLE.replace("%n3", "%n2") + DEVICE + CLAMPED + own_column("%c") + OWN_UPDATE,
        {NOT_EQUIVALENT},
    ),
    "update at a multiple, dropped": (
        "columns",
        MULTIPLE + UPDATE,
        MULTIPLE + DEVICE + own_column("%s") + OWN_UPDATE,
        {NOT_EQUIVALENT},
    ),
    # dynamic-slice does so, too.
    "window": ("window", WRAP + WINDOW, WRAP + OWN_WINDOW, {EQUIVALENT}),
    "window, clamped twice": (
        "window",
        WRAP + WINDOW,
        WRAP + CLAMPED + OWN_WINDOW.replace("%n0, %s", "%n0, %c"),
        {EQUIVALENT},
    ),
    "window, not wrapped": ("window", WRAP + WINDOW, plain() + OWN_WINDOW, {NOT_EQUIVALENT}),
    "window, clamped below 1": (
        "window",
        plain() + WINDOW,
        "  %s = s32[] maximum(%i, %n1)\n" + OWN_WINDOW,
        {NOT_EQUIVALENT},
    ),
    "window, zeros out of bounds": (
        "window",
        plain() + WINDOW,
        plain()
        + WHOLE
        + "  %made = f32[2,3] dynamic-slice(%xs, %n0, %s), dynamic_slice_sizes={2,3}\n"
        "  %fits = pred[] compare(%s, %n5), direction=LE\n"
        "  %all = pred[2,3] broadcast(%fits), dimensions={}\n  %zero = f32[] constant(0)\n"
        "  %zeros = f32[2,3] broadcast(%zero), dimensions={}\n"
        "  ROOT %y = f32[2,3] select(%all, %made, %zeros)\n",
        {NOT_EQUIVALENT},
    ),
    # gather: out of bounds is moved into bounds (mode "clip", and the effect of
    # "promise_in_bounds").
    "rows, clamped first": ("found", LOOKUP, DEVICE + BOUNDED + own_rows("%bounded"), {EQUIVALENT}),
    "rows, zeros out of bounds": ("found", LOOKUP, DEVICE + own_rows(), {NOT_EQUIVALENT}),
    "rows, clamped to the row before the last": (
        "found",
        LOOKUP,
        DEVICE + BOUNDED.replace("%b7", "%b6").replace("%n7", "%n6") + own_rows("%bounded"),
        {NOT_EQUIVALENT},
    ),
    "rows, wrapped": (
        "found",
        LOOKUP,
        DEVICE
        + WRAPPED
        + BOUNDED.replace("%ids", "%wrapped").replace(numbers(0), "")
        + own_rows("%bounded"),
        {NOT_EQUIVALENT},
    ),
    "rows, wrapped by both": (
        "found",
        WRAPPED + LOOKUP.replace("%ids", "%wrapped"),
        DEVICE
        + WRAPPED
        + BOUNDED.replace("%ids", "%wrapped").replace(numbers(0), "")
        + own_rows("%bounded"),
        {EQUIVALENT},
    ),
    "rows, wrapped by the model": (
        "found",
        WRAPPED + LOOKUP.replace("%ids", "%wrapped"),
        DEVICE + BOUNDED + own_rows("%bounded"),
        {NOT_EQUIVALENT},
    ),
    # Mode "fill": where there is no row the model has no value, and of the plan nothing is asked.
    "rows or none": (
        "found",
        FILLED,
        DEVICE + INSIDE + own_rows(sum="%found") + NANS,
        {EQUIVALENT},
    ),
    "rows or anything": ("found", FILLED, DEVICE + BOUNDED + own_rows("%bounded"), {EQUIVALENT}),
    "rows or none, one too few": (
        "found",
        FILLED,
        DEVICE + INSIDE.replace("direction=LE", "direction=LT") + own_rows(sum="%found") + NANS,
        {NOT_EQUIVALENT},
    ),
    "rows or none, where the model has rows": (
        "found",
        LOOKUP,
        DEVICE + INSIDE + own_rows(sum="%found") + NANS,
        {NOT_EQUIVALENT},
    ),
    # scatter leaves out what is out of bounds.
    "sums, dropped": ("rows", added(), DEVICE + LOCAL_IDS + added("%local", rows=4), {EQUIVALENT}),
    "sums, clamped": (
        "rows",
        added(),
        DEVICE
        + LOCAL_IDS.replace("%ids", "%bounded").replace("  %ats", BOUNDED + "  %ats")
        + added("%local", rows=4),
        {NOT_EQUIVALENT},
    ),
    "sums, clamped by both": (
        "rows",
        BOUNDED + added("%bounded"),
        BOUNDED + DEVICE + LOCAL_IDS.replace("%ids", "%bounded") + added("%local", rows=4),
        {EQUIVALENT},
    ),
    "sums, wrapped": (
        "rows",
        added(),
        DEVICE + WRAPPED + LOCAL_IDS.replace("%ids", "%wrapped") + added("%local", rows=4),
        {NOT_EQUIVALENT},
    ),
    "sums, clamped by each device": (
        "rows",
        added(),
        DEVICE
        + LOCAL_IDS
        + numbers(0)
        + numbers(3)
        + "  %mine = s32[5] clamp(%b0, %local, %b3)\n"
        + added("%mine", rows=4),
        {NOT_EQUIVALENT},
    ),
    "one row set, dropped": (
        "rows",
        WRAP + one_set("%s", 8),
        WRAP + DEVICE + OWN_START + one_set("%local", 4),
        {EQUIVALENT},
    ),
    "one row set, clamped": (
        "rows",
        WRAP + one_set("%s", 8),
        WRAP + DEVICE + CLAMPED + OWN_START.replace("%s", "%c") + one_set("%local", 4),
        {NOT_EQUIVALENT},
    ),
    "one row set, not wrapped": (
        "rows",
        WRAP + one_set("%s", 8),
        plain() + DEVICE + OWN_START + one_set("%local", 4),
        {NOT_EQUIVALENT},
    ),
    # Integers wrap around.
    "one more is greater, but once": (
        "columns",
        keep(SUCCESSOR, 8),
        "  ROOT %y = f32[2,4] copy(%x)\n",
        {NOT_EQUIVALENT},
    ),
    "one more is greater": ("columns", keep(SUCCESSOR, 8), keep(SUCCESSOR, 4), {EQUIVALENT}),
    "all but the greatest": (
        "columns",
        keep(SUCCESSOR, 8),
        keep("  %c = pred[] compare(%i, %n2147483647), direction=NE\n", 4),
        {EQUIVALENT},
    ),
    "a place that overflows": (
        "columns",
        plain() + UPDATE,
        "  %far = s32[] multiply(%n65536, %n65536)\n  %s = s32[] add(%i, %far)\n"
        + DEVICE
        + CLAMPED
        + own_column("%c")
        + OWN_UPDATE,
        {EQUIVALENT},
    ),
    "a place that overflows to another": (
        "columns",
        plain() + UPDATE,
        "  %far = s32[] multiply(%n65536, %n65537)\n"
        "  %s = s32[] add(%i, %far)\n" + DEVICE + CLAMPED + own_column("%c") + OWN_UPDATE,
        {NOT_EQUIVALENT},
    ),
    "a device's place that overflows": (
        "columns",
        plain() + UPDATE,
        plain()
        + DEVICE.replace("multiply(%number, %n4)", "multiply(%number, %big)").replace(
            "  %at ", "  %big = s32[] add(%n2147483647, %n5)\n  %at "
        )
        + CLAMPED
        + own_column("%c")
        + OWN_UPDATE,
        {NOT_EQUIVALENT},
    ),
    "8 bits": (
        "found",
        "  %v = s8[] constant(100)\n  %vs = s8[5] broadcast(%v), dimensions={}\n"
        "  %m = s8[5] add(%t, %vs)\n"
        "  %ids2 = s32[5] convert(%m)\n" + LOOKUP.replace("%ids", "%ids2"),
        "  %v = s32[] constant(100)\n  %vs = s32[5] broadcast(%v), dimensions={}\n"
        "  %wide = s32[5] convert(%t)\n"
        "  %m = s32[5] add(%wide, %vs)\n"
        + DEVICE
        + BOUNDED.replace("%ids", "%m")
        + own_rows("%bounded"),
        {NOT_EQUIVALENT},
    ),
    "8 bits, both": (
        "found",
        "  %v = s8[] constant(100)\n  %vs = s8[5] broadcast(%v), dimensions={}\n"
        "  %m = s8[5] add(%t, %vs)\n"
        "  %ids2 = s32[5] convert(%m)\n" + LOOKUP.replace("%ids", "%ids2"),
        "  %v = s8[] constant(100)\n  %vs = s8[5] broadcast(%v), dimensions={}\n"
        "  %m = s8[5] add(%t, %vs)\n"
        "  %ids2 = s32[5] convert(%m)\n"
        + DEVICE
        + BOUNDED.replace("%ids", "%ids2")
        + own_rows("%bounded"),
        {EQUIVALENT},
    ),
    "a sum of two": ("columns", keep(TOTAL, 8), keep(TOTAL, 4), EQUIVALENT_IF),
    "a sum of two in bytes": (
        "columns",
        keep(IN_BYTES, 8),
        keep(IN_BYTES, 4),
        EQUIVALENT_IF,
    ),
}
# What the report says is assumed; of all other cases nothing.
ASSUMED = {
    "a sum of two": r"(?<!narrow-)integer-overflow: .*model\.hlo:\d+.*plan\.hlo:\d+",
    "a sum of two in bytes": r"narrow-integer-overflow: .*plan\.hlo:\d+ add",
}


def program(result, body, plan):
    side = 1 if plan else 0
    constants = "".join(
        f"  %n{n} = s32[] constant({n})\n"
        for n in sorted({int(n) for n in re.findall(r"%n([0-9]+)", body)})
    )
    parameters = ""
    for number, (name, types) in enumerate(PARAMETERS.items()):
        sharding = f", sharding={types[2]}" if plan else ""
        parameters += f"  %{name} = {types[side]} parameter({number}){sharding}\n"
    if plan:
        body = (
            body.replace("ROOT %y =", "%last =")
            + f"  ROOT %y = {RESULTS[result][1]} copy(%last), sharding={RESULTS[result][2]}\n"
        )
    header = "HloModule jit_f" + (", num_partitions=2" if plan else "")
    signature = ", ".join(f"{name}: {types[side]}" for name, types in PARAMETERS.items())
    return (
        f"{header}\n\n{REGIONS}ENTRY %main ({signature}) -> {RESULTS[result][side]} {{\n"
        f"{parameters}{constants}{body}}}\n"
    )


def main():
    shardproof = os.path.abspath(sys.argv[1])
    names = sys.argv[2:] or CASES
    failed = False

    def check(name, options, expected, assumed):
        nonlocal failed
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
                *options,
            ],
            capture_output=True,
            text=True,
        )
        told = re.findall(
            r"(?:(?:narrow-)?integer-overflow|indices-in-bounds): .*", done.stdout + done.stderr
        )
        right = done.returncode in expected and (
            re.search(assumed, " ".join(told)) if assumed else not told
        )
        if done.returncode == NOT_EQUIVALENT and not options:
            right = right and "--assume-in-bounds" in done.stdout
        # Where it comes from, in the texts.
        right = right and (done.returncode != NOT_EQUIVALENT or "plan.hlo:" in done.stdout)
        print(
            f"{name}: exit code {done.returncode}"
            + ("" if right else f", expected one of {sorted(expected)}\n{done.stdout}{done.stderr}")
        )
        failed = failed or not right

    with tempfile.TemporaryDirectory() as directory:
        model, plan = (os.path.join(directory, n) for n in ("model.hlo", "plan.hlo"))
        for name in names:
            result, single, parallel, expected = CASES[name]
            for path, body in ((model, single), (plan, parallel)):
                with open(path, "w") as file:
                    file.write(program(result, body, path == plan))
            check(name, [], expected, ASSUMED.get(name))
            if name == "update, dropped where out of bounds":
                check(
                    name + ", which is assumed not to be",
                    ["--assume-in-bounds"],
                    EQUIVALENT_IF,
                    r"indices-in-bounds: .*'i'.*0 to 7",
                )
            if name == "update, one bound too early":
                check(
                    name + ", in bounds",
                    ["--assume-in-bounds"],
                    {NOT_EQUIVALENT},
                    r"indices-in-bounds: ",
                )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
