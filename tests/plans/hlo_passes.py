# SPDX-License-Identifier: Apache-2.0
"""`verify --before A --after B`: passes over the program of each device, right and wrong ones."""

import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from plan_edit import EQUIVALENT, INPUT_ERROR, NO_CAUSES, NOT_EQUIVALENT, USAGE, Failure, Runner

ADD = """%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}
"""
EVERY = "channel_id={0}, replica_groups={{{{0,1,2,3}}}}, use_global_device_ids=true, to_apply=%add"


def program(entry, *others):
    return "HloModule step, num_partitions=4\n" + ADD + "".join(others) + entry


# Two sums over the devices, of which one is cut: a reduce-scatter, and one sum of both.
SUMS = program(
    f"""ENTRY %main (a: f32[8,4], b: f32[8,4]) -> (f32[2,4], f32[8,4]) {{
  %a = f32[8,4] parameter(0)
  %b = f32[8,4] parameter(1)
  %ra = f32[8,4] all-reduce(%a), {EVERY.format(1)}
  %rb = f32[8,4] all-reduce(%b), {EVERY.format(2)}
  %s = f32[8,4] add(%ra, %rb)
  %id = u32[] partition-id()
  %two = u32[] constant(2)
  %at = u32[] multiply(%id, %two)
  %zero = u32[] constant(0)
  %piece = f32[2,4] dynamic-slice(%ra, %at, %zero), dynamic_slice_sizes={{2,4}}
  ROOT %r = (f32[2,4], f32[8,4]) tuple(%piece, %s)
}}
"""
)
SUMS_AFTER = program(
    f"""ENTRY %main (a: f32[8,4], b: f32[8,4]) -> (f32[2,4], f32[8,4]) {{
  %a = f32[8,4] parameter(0)
  %b = f32[8,4] parameter(1)
  %piece = f32[2,4] reduce-scatter(%a), dimensions={{0}}, {EVERY.format(1)}
  %c = f32[8,4] add(%a, %b)
  %s = f32[8,4] all-reduce(%c), {EVERY.format(2)}
  ROOT %r = (f32[2,4], f32[8,4]) tuple(%piece, %s)
}}
"""
)

# Two all-reduces become one of two operands.
COMBINED = program(
    f"""ENTRY %main (a: f32[8,4], b: f32[8,4]) -> (f32[2,4], f32[8,4]) {{
  %a = f32[8,4] parameter(0)
  %b = f32[8,4] parameter(1)
  %both = (f32[8,4], f32[8,4]) all-reduce(%a, %b), {EVERY.format(1)}
  %ra = f32[8,4] get-tuple-element(%both), index=0
  %rb = f32[8,4] get-tuple-element(%both), index=1
  %s = f32[8,4] add(%ra, %rb)
  %id = u32[] partition-id()
  %two = u32[] constant(2)
  %at = u32[] multiply(%id, %two)
  %zero = u32[] constant(0)
  %piece = f32[2,4] dynamic-slice(%ra, %at, %zero), dynamic_slice_sizes={{2,4}}
  ROOT %r = (f32[2,4], f32[8,4]) tuple(%piece, %s)
}}
"""
)

LOOP = """%more (t: (s32[], f32[8], f32[3,8])) -> pred[] {{
  %t = (s32[], f32[8], f32[3,8]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %n = s32[] constant({turns})
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}}
%body (t: (s32[], f32[8], f32[3,8])) -> (s32[], f32[8], f32[3,8]) {{
  %t = (s32[], f32[8], f32[3,8]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %sum = f32[8] get-tuple-element(%t), index=1
  %all = f32[3,8] get-tuple-element(%t), index=2
  %zero = s32[] constant(0)
  %row = f32[1,8] dynamic-slice(%all, %i, %zero), dynamic_slice_sizes={{1,8}}
  %x = f32[8] reshape(%row)
  {reduce}
  %new = f32[8] add(%sum, %y)
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  ROOT %r = (s32[], f32[8], f32[3,8]) tuple(%next, %new, %all)
}}
"""
ACCUMULATE = """ENTRY %main (all: f32[3,8], first: f32[8]) -> f32[8] {{
  %all = f32[3,8] parameter(0)
  %first = f32[8] parameter(1)
  %none = f32[] constant(0)
  %zeros = f32[8] broadcast(%none), dimensions={{}}
  %zero = s32[] constant(0)
  %start = (s32[], f32[8], f32[3,8]) tuple(%zero, {start}, %all)
  %loop = (s32[], f32[8], f32[3,8]) while(%start), condition=%more, body=%body
  %out = f32[8] get-tuple-element(%loop), index=1
  {end}
}}
"""
IN_THE_LOOP = f"%y = f32[8] all-reduce(%x), {EVERY.format(1)}"
AFTER_THE_LOOP = f"ROOT %sum = f32[8] all-reduce(%out), {EVERY.format(1)}"


def loop(inside, start, turns=3):
    """A sum over microbatches, reduced in each turn or once at the end."""
    reduce = IN_THE_LOOP if inside else "%y = f32[8] copy(%x)"
    end = "ROOT %sum = f32[8] copy(%out)" if inside else AFTER_THE_LOOP
    return program(ACCUMULATE.format(start=start, end=end), LOOP.format(turns=turns, reduce=reduce))


RING = program(
    """ENTRY %main (a: f32[4]) -> f32[16] {
  %a = f32[4] parameter(0)
  ROOT %all = f32[16] all-gather(%a), channel_id=1, replica_groups=[1,4]<=[4], dimensions={0}, """
    """use_global_device_ids=true
}
"""
)
PAIRS = "{{0,1},{1,2},{2,3},{3,0}}"
RING_AFTER = program(
    f"""ENTRY %main (a: f32[4]) -> f32[16] {{
  %a = f32[4] parameter(0)
  %b = f32[4] collective-permute(%a), channel_id=1, source_target_pairs={PAIRS}
  %c = f32[4] collective-permute(%b), channel_id=2, source_target_pairs={PAIRS}
  %d.1 = (f32[4], f32[4]) collective-permute-start(%c), channel_id=3, """
    f"""source_target_pairs={PAIRS}
  %d = f32[4] collective-permute-done(%d.1)
  %none = f32[] constant(0)
  %zeros = f32[16] broadcast(%none), dimensions={{}}
  %id = s32[4] constant({{0, 4, 8, 12}})
  %number = u32[] partition-id()
  %mine.1 = s32[1] dynamic-slice(%id, %number), dynamic_slice_sizes={{1}}
  %mine = s32[] reshape(%mine.1)
  %sixteen = s32[] constant(16)
  %four = s32[] constant(4)
  %at1.1 = s32[] add(%mine, %sixteen)
  %at1.2 = s32[] subtract(%at1.1, %four)
  %at1 = s32[] remainder(%at1.2, %sixteen)
  %at2.1 = s32[] add(%at1, %sixteen)
  %at2.2 = s32[] subtract(%at2.1, %four)
  %at2 = s32[] remainder(%at2.2, %sixteen)
  %at3.1 = s32[] add(%at2, %sixteen)
  %at3.2 = s32[] subtract(%at3.1, %four)
  %at3 = s32[] remainder(%at3.2, %sixteen)
  %u0 = f32[16] dynamic-update-slice(%zeros, %a, %mine)
  %u1 = f32[16] dynamic-update-slice(%u0, %b, %at1)
  %u2 = f32[16] dynamic-update-slice(%u1, %c, %at2)
  ROOT %all = f32[16] dynamic-update-slice(%u2, %d, %at3)
}}
"""
)

# That all devices hold the same parameter is known by its sharding only.
REPLICATED = program(
    f"""ENTRY %main (a: f32[8]) -> f32[8] {{
  %a = f32[8] parameter(0), sharding={{replicated}}
  ROOT %sum = f32[8] all-reduce(%a), {EVERY.format(1)}
}}
"""
)
REPLICATED_AFTER = program(
    """ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8] parameter(0), sharding={replicated}
  %four.1 = f32[] constant(4)
  %four = f32[8] broadcast(%four.1), dimensions={}
  ROOT %sum = f32[8] multiply(%a, %four)
}
"""
)
MARK = ", sharding={replicated}"

EXCHANGE = program(
    """ENTRY %main (a: f32[4,8]) -> f32[4,8] {
  %a = f32[4,8] parameter(0)
  ROOT %x = f32[4,8] all-to-all(%a), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}
}
"""
)
EXCHANGE_AFTER = program(
    """ENTRY %main (a: f32[4,8]) -> f32[4,8] {
  %a = f32[4,8] parameter(0)
  %all = f32[16,8] all-gather(%a), channel_id=1, replica_groups=[1,4]<=[4], dimensions={0}, """
    """use_global_device_ids=true
  %parts = f32[4,4,8] reshape(%all)
  %id = u32[] partition-id()
  %zero = u32[] constant(0)
  %mine = f32[4,1,8] dynamic-slice(%parts, %zero, %id, %zero), dynamic_slice_sizes={4,1,8}
  ROOT %x = f32[4,8] reshape(%mine)
}
"""
)

# Layouts move elements in memory, and a bitcast reads them in that order.
TRANSPOSED = program(
    f"""ENTRY %main (a: f32[2,3,4]) -> f32[8,3] {{
  %a = f32[2,3,4]{{2,1,0}} parameter(0)
  %sum = f32[2,3,4]{{2,1,0}} all-reduce(%a), {EVERY.format(1)}
  %t = f32[4,2,3]{{2,1,0}} transpose(%sum), dimensions={{2,0,1}}
  ROOT %r = f32[8,3]{{1,0}} reshape(%t)
}}
"""
)
BITCAST = program(
    f"""%moved (p: f32[2,3,4]) -> f32[3,8] {{
  %p = f32[2,3,4]{{2,1,0}} parameter(0)
  %c = f32[2,3,4]{{1,0,2}} copy(%p)
  ROOT %b = f32[3,8]{{0,1:S(1)}} bitcast(%c)
}}
ENTRY %main (a: f32[2,3,4]) -> f32[8,3] {{
  %a = f32[2,3,4]{{2,1,0}} parameter(0)
  %sum = f32[2,3,4]{{2,1,0}} all-reduce(%a), {EVERY.format(1)}
  %f = f32[3,8]{{0,1}} fusion(%sum), kind=kLoop, calls=%moved
  ROOT %r = f32[8,3]{{1,0}} bitcast(%f)
}}
"""
)

# Of a square matrix, the sizes stay.
SQUARE = program(
    """ENTRY %main (a: f32[4,4]) -> f32[4,4] {
  %a = f32[4,4]{1,0} parameter(0)
  ROOT %t = f32[4,4]{1,0} transpose(%a), dimensions={1,0}
}
"""
)
SQUARE_BITCAST = program(
    """ENTRY %main (a: f32[4,4]) -> f32[4,4] {
  %a = f32[4,4]{1,0} parameter(0)
  %c = f32[4,4]{0,1} copy(%a)
  ROOT %r = f32[4,4]{1,0} bitcast(%c)
}
"""
)
OTHER_LAYOUT = BITCAST.replace("bitcast(%f)", "transpose(%f), dimensions={1,0}")

RIGHT = {
    "bitcast_and_transpose": (TRANSPOSED, OTHER_LAYOUT),
    "bitcast_through_another_layout": (TRANSPOSED, BITCAST.replace("{0,1", "{1,0")),
    "bitcast_of_a_square": (SQUARE, SQUARE_BITCAST),
    "bitcast": (TRANSPOSED, BITCAST),
    "bitcast_back": (BITCAST, TRANSPOSED),
    "reduce_scatter": (SUMS, SUMS_AFTER),
    "and_back": (SUMS_AFTER, SUMS),
    "combined": (SUMS, COMBINED),
    "split": (COMBINED, SUMS),
    "out_of_the_loop": (loop(True, "%zeros"), loop(False, "%zeros")),
    "into_the_loop": (loop(False, "%zeros"), loop(True, "%zeros")),
    "gathered_in_a_ring": (RING, RING_AFTER),
    "ring_to_gather": (RING_AFTER, RING),
    "replicated_parameter": (REPLICATED, REPLICATED_AFTER),
    "exchange": (EXCHANGE, EXCHANGE_AFTER),
    "exchange_back": (EXCHANGE_AFTER, EXCHANGE),
}
WRONG = {
    "bitcast_of_another_layout": (TRANSPOSED, BITCAST.replace("{1,0,2}", "{0,1,2}")),
    "bitcast_of_a_square_that_is_not_moved": (SQUARE, SQUARE_BITCAST.replace("{0,1}", "{1,0}")),
    "bitcast_to_another_layout": (TRANSPOSED, OTHER_LAYOUT.replace("{0,1", "{1,0")),
    "groups_in_another_order": (
        SUMS,
        SUMS_AFTER.replace("{{0,1,2,3}}", "{{1,0,2,3}}", 1),
    ),
    "a_smaller_group": (
        SUMS,
        SUMS_AFTER.replace("{{0,1,2,3}}", "{{0,1},{2,3}}")
        .replace("%piece = f32[2,4] reduce-scatter(%a)", "%half = f32[4,4] reduce-scatter(%a)")
        .replace("  %c = ", "  %piece = f32[2,4] slice(%half), slice={[0:2], [0:4]}\n  %c = "),
    ),
    "results_swapped": (
        SUMS,
        COMBINED.replace("(%both), index=0", "(%both), index=9")
        .replace("(%both), index=1", "(%both), index=0")
        .replace("(%both), index=9", "(%both), index=1"),
    ),
    # What the sum begins with is added once, not once for each device.
    "first_value_is_reduced_too": (loop(True, "%first"), loop(False, "%first")),
    "another_number_of_turns": (loop(True, "%zeros"), loop(False, "%zeros", turns=2)),
    "a_ring_the_other_way": (RING, RING_AFTER.replace(PAIRS, "{{1,0},{2,1},{3,2},{0,3}}")),
    "a_pair_is_missing": (RING, RING_AFTER.replace(",{3,0}", "", 1)),
    "other_parameters_on_each_device": (
        REPLICATED.replace(MARK, ""),
        REPLICATED_AFTER.replace(MARK, ""),
    ),
    "exchange_of_the_other_dimension": (
        EXCHANGE,
        EXCHANGE_AFTER.replace(
            "%mine = f32[4,1,8] dynamic-slice(%parts, %zero, %id, %zero), "
            "dynamic_slice_sizes={4,1,8}",
            "%mine = f32[1,4,8] dynamic-slice(%parts, %id, %zero, %zero), "
            "dynamic_slice_sizes={1,4,8}",
        ),
    ),
}

# Each device turns as often as its number says, so that the devices do not meet.
UNEQUAL = program(
    f"""%more (t: (u32[], f32[8])) -> pred[] {{
  %t = (u32[], f32[8]) parameter(0)
  %i = u32[] get-tuple-element(%t), index=0
  %n = u32[] constant(5)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}}
%body (t: (u32[], f32[8])) -> (u32[], f32[8]) {{
  %t = (u32[], f32[8]) parameter(0)
  %i = u32[] get-tuple-element(%t), index=0
  %x = f32[8] get-tuple-element(%t), index=1
  %y = f32[8] all-reduce(%x), {EVERY.format(1)}
  %one = u32[] constant(1)
  %next = u32[] add(%i, %one)
  ROOT %r = (u32[], f32[8]) tuple(%next, %y)
}}
ENTRY %main (a: f32[8]) -> f32[8] {{
  %a = f32[8] parameter(0)
  %id = u32[] partition-id()
  %start = (u32[], f32[8]) tuple(%id, %a)
  %loop = (u32[], f32[8]) while(%start), condition=%more, body=%body
  ROOT %out = f32[8] get-tuple-element(%loop), index=1
}}
"""
)


def verify(runner, before, after, *options):
    files = []
    for name, text in (("before.hlo", before), ("after.hlo", after)):
        file = runner.path(name)
        file.write_text(text)
        files.append(str(file))
    return subprocess.run(
        [runner.program, "verify", *NO_CAUSES, "--before", files[0], "--after", files[1], *options],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def expect(done, code, *texts):
    shown = done.stdout + done.stderr
    if done.returncode != code:
        raise Failure(f"exit code {done.returncode}, expected {code}: {shown[:800]}")
    for text in texts:
        if text not in shown:
            raise Failure(f"expected {text!r} in {shown[:800]}")


def right(runner, before, after):
    expect(verify(runner, before, after), EQUIVALENT)
    # without names that both have, nothing tells which instruction became which
    expect(verify(runner, before, after.replace("%", "%other.")), EQUIVALENT)


def wrong(runner, before, after):
    expect(verify(runner, before, after), NOT_EQUIVALENT)


def a_loop_in_which_devices_do_not_meet(runner):
    expect(verify(runner, UNEQUAL, UNEQUAL), INPUT_ERROR, "how often the loop turns")


def usage(runner):
    done = verify(runner, RING, RING, "--model", "m.hlo")
    expect(done, USAGE, "--model")
    done = verify(runner, RING, RING, "--certify", "log.json")
    expect(done, USAGE, "--certify")
    done = verify(runner, RING, RING, "other.plan.json")
    expect(done, USAGE, "there is no plan")
    done = subprocess.run(
        [runner.program, "verify", "--before", "a.hlo"], capture_output=True, text=True, check=False
    )
    expect(done, USAGE, "--after")
    for layout in ("{1,0,2:T(2,128)}", "{1,0,2:S(1)T(2,128)}", "{1 0 2}", "{1,0}", ""):
        other = BITCAST.replace("{1,0,2}", layout)
        expect(verify(runner, BITCAST, other), INPUT_ERROR, "not written, or are in tiles")
    expect(verify(runner, "{}", "{}"), INPUT_ERROR, "found no HLO program")


def convert(runner):
    """The files execute to the same numbers."""
    before, after, folder = (runner.path(n) for n in ("before.hlo", "after.hlo", "converted"))
    before.write_text(SUMS)
    after.write_text(SUMS_AFTER)
    done = subprocess.run(
        [runner.program, "convert", "--before", before, "--after", after, "-o", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    expect(done, 0)
    done = subprocess.run(
        [runner.program, "run", "-p", folder / "converted.plan.json"],
        capture_output=True,
        text=True,
        check=False,
    )
    expect(done, 0, "AGREES")


def main():
    runner = Runner(sys.argv[1])
    for name, (before, after) in RIGHT.items():
        runner.case(f"right_{name}", right, before, after)
    for name, (before, after) in WRONG.items():
        runner.case(f"wrong_{name}", wrong, before, after)
    for case in (a_loop_in_which_devices_do_not_meet, usage, convert):
        runner.case(case.__name__, case)
    return runner.run()


if __name__ == "__main__":
    sys.exit(main())
