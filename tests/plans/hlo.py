#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs of JAX before and after partitioning: right ones are proved, broken ones are not.

hlo.py PROGRAM [NAME ...]: shardproof's path, and of which programs (all). The programs are in hlo/,
written by hlo/make.py.
"""

import concurrent.futures
import glob
import gzip
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from plan_edit import NO_CAUSES

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hlo")
# How many broken copies must be refuted at least.
LEAST_BROKEN = {
    "factor_of_rows": 4,
    "eigenvalues_in_shard_map": 3,
    "greatest_by_vocabulary": 3,
    "functions_of_elements": 3,
    "experts": 2,
    "decoding_step": 3,
    "llama_scan": 3,
    "layer_norm_adamw": 1,
    "quantised": 3,
    "scattered_extremes": 4,
    "pooling_with_padding": 4,
}
LEAST_BROKEN_OTHERS = 5  # of each other program

# Ranks that look up their part of the rows and mask the others: zeros where the model's index is
# out of bounds, or wrapped.
IN_BOUNDS = {"shard_map_vocabulary", "log_softmax_by_vocabulary"}

# Integers of which it is not known that they fit their type: the verdict is conditional.
OVERFLOW = {"functions_of_elements"}

# Edits after which a program still computes the same for indices in bounds: {program: {edit}}.
HARMLESS = {
    # The wrapping of indices below 0, of which there are none. The difference of what is 0. A
    # choice between zeros and zeros. A sum of exponentials compared with 0. A bound that no index
    # reaches. An index into one row.
    "language_model_tp": {
        "minus 0",
        "minus 7",
        "tanh 3",
        "position 1",
        "bounds 8",
        "integer 2",
        "integer 4",
    },
    "fsdp_language_model": {"minus 0", "tanh 3", "integer 2", "integer 3"},
    "left_out_labels": {"minus 0", "integer 1", "integer 2"},
    # A bound that no number reaches; the start of a slice along a whole dimension.
    "fsdp_optax": {"integer 2"},
    "clip_norm": {"bounds 0", "integer 2"},
    "sharded_moments": {"integer 2"},
    "soft_experts": {"integer 0"},
    # -3e9 in place of -1e9 as the score of what is masked.
    "attention_by_heads": {"constant 1"},
    # Where the first position is: only whether a rank has it matters.
    "shifted_sequence": {"integer 0"},
    # Which columns a rank takes of those that are all added up. The start of a slice along a whole
    # dimension.
    "uneven": {"position 0", "integer 1"},
    # 0 subtracted.
    "dropout": {"minus 25"},
    # Where the rows end that a rank gets of the next: the last rank gets zeros anyway.
    "convolutions_by_rows": {"minus 0", "bounds 0", "bounds 2", "integer 3"},
    # The wrapping again, and rows out of the rank's window, which are masked.
    "shard_map_vocabulary": {"minus 0", "integer 2"},
    # The derivative by what is added to all chosen ones, which softmax removes. The start of a
    # slice along a whole dimension.
    "top_k_experts": {"tanh 4", "integer 0"},
    # Places of the greatest are never equal. The first place, which no number takes. A start that
    # is moved into bounds.
    "experts_of_limited_capacity": {"bounds 0", "integer 0", "integer 1"},
    # The wrapping again; a row that is masked.
    "log_softmax_by_vocabulary": {"minus 3", "integer 1"},
    # What the mean adds to the derivative of the variance: nothing.
    "batch_norm": {"minus 2"},
    "decoding_step": {"minus 0", "integer 1"},
    # Wrapping again; a turn more, in which each device computes its own rows a second time.
    "matmul_in_a_ring": {"minus 4", "unequal 2", "bounds 0", "bounds 3"},
    # At the step where one part of the schedule goes over into the next.
    "rate_schedule": {"bounds 0"},
    # Places are never equal; the first place, which no number takes.
    "greatest_by_vocabulary": {"bounds 0", "bounds 2", "integer 1"},
    # The remainder below 0, where it only matters that it is not 0. A divisor below 0, which is not
    # 0.
    "functions_of_elements": {"bounds 0", "bounds 1"},
    # 0 subtracted.
    "noise_by_rbg": {"minus 0"},
    # The wrapping of indices.
    "gaussian_likelihood": {"minus 2", "integer 1"},
    # Rows counted from the end and wrapped. An exchange in both directions. A choice between zeros
    # and zeros. Equal places.
    "loss_and_accuracy": {
        "minus 0",
        "direction 0",
        "direction 1",
        "position 2",
        "bounds 0",
        "integer 2",
    },
    # How an exponential that is infinite is computed. The start of a slice along a whole dimension.
    "complex_rotation": {"tanh 2", "constant 2", "unequal 0"},
    "branch_with_communication": {"integer 0"},
}


# Edits that are left out:
#   * A random number compared by <=: takes minutes, and nothing could show it.
#   * The norm of the gradients through a tanh that is 1 for all gradients that are drawn: 1/1 is
#     neither above nor below the bound 1.
#   * A greater capacity, where what is beyond it has no place anyway.
#   * Another score of what is masked.
#   * A gradient that only the optimiser uses, in which every evaluation meets a tie.
#   * An opaque function that is no longer called: the message names the model's call.
#   * A sum of exponentials compared with 0 by <=: harmless, and undecided after minutes.
#   * A norm compared by <=: nothing could show it.
#   * The wrapping of a negative place: its edge is left out, and that another edge has the wrapped
#     one is rare among those that are drawn.
#   * The power of a step count, which is any integer, so few of those that are drawn are small.
LEFT_OUT = {
    "fsdp_language_model": {"bounds 6"},
    "dropout": {"bounds 2"},
    "clip_norm": {"tanh 0"},
    "experts_of_limited_capacity": {"constant 1", "bounds 1"},
    "decoding_step": {"constant 0"},
    "layer_norm_adamw": {"dropped 6"},
    "functions_of_elements": {"integer 0"},
    "rate_schedule": {"squared 21", "integer 0"},
    "branch_with_communication": {"bounds 0"},
    "attention_over_edges": {"minus 1"},
}


# Programs with functions of which nothing is known: what makes their arguments others is undecided.
OPAQUE = {
    "gaussian_likelihood",
    "factor_of_rows",
    "eigenvalues_in_shard_map",
    "functions_of_elements",
}

# Of a long program only these kinds of edits, which would take minutes together.
ONLY = {
    "llama_scan": ("dropped", "unequal"),
    "layer_norm_adamw": ("dropped",),
    "dropout_by_counter": ("dropped", "squared"),
    "dropout_by_device": ("dropped", "squared"),
    "fourier_layers": ("dropped", "squared", "constant"),
    "pooling_with_padding": ("dropped", "squared"),
}


def verify(shardproof, model, plan, *options, harmless=False):
    """harmless: what is proved is proved in a moment; what is not would take all of the time."""
    limits = ("1", "--timeout", "10") if harmless else ("5",)
    done = subprocess.run(
        [
            shardproof,
            "verify",
            *(() if "--diagnose" in options else NO_CAUSES),
            "-j",
            "1",
            "--stage-timeout",
            *limits,
            "--model",
            model,
            "--plan",
            plan,
            *options,
        ],
        capture_output=True,
        text=True,
    )
    return done.returncode, (done.stdout + done.stderr).strip()


def bodies(text):
    """Numbers of the lines that are not of a reduction's region."""
    numbers, inside, lines = [], [], text.split("\n")
    for n, line in enumerate(lines):
        if line.startswith(("%", "ENTRY")):
            inside = []
        elif line.startswith("}"):
            if len(inside) > 3:
                numbers += inside
        elif line.startswith("  "):
            inside.append(n)
    return lines, numbers


def first_operand(line):
    return re.search(r"\((%[\w.-]+)", line).group(1)


def edits(text):
    """(name, text) of broken programs; at most three of a kind, spread over the program."""
    lines, numbers = bodies(text)

    def spread(kind, pattern, change):
        found = [n for n in numbers if re.search(pattern, lines[n])]
        for k in sorted({0, len(found) // 2, len(found) - 1}) if found else []:
            edited = list(lines)
            edited[found[k]] = change(lines[found[k]])
            if edited[found[k]] != lines[found[k]]:
                yield f"{kind} {k}", "\n".join(edited)

    yield from spread(
        "dropped",
        r" all-reduce\(%",
        lambda s: re.sub(
            r" all-reduce\((%[\w.-]+)\), .*?(, sharding=|, metadata=|$)", r" copy(\1)\2", s
        ),
    )
    yield from spread(
        "minus", r" add\(%[\w.-]+, %[\w.-]+\)", lambda s: s.replace(" add(", " subtract(")
    )
    yield from spread(
        "squared",
        r"f32\[\d.* multiply\((%[\w.-]+), (?!\1\))",
        lambda s: re.sub(r" multiply\((%[\w.-]+), %[\w.-]+\)", r" multiply(\1, \1)", s),
    )
    yield from spread(
        "tanh",
        r" (exponential|negate|rsqrt|sqrt)\(%",
        lambda s: re.sub(r" (exponential|negate|rsqrt|sqrt)\(", " tanh(", s),
    )
    yield from spread(
        "constant",
        r"= f32\[\] constant\((?!0\)|-?inf|nan)",
        lambda s: re.sub(
            r" constant\(([^)]*)\)", lambda m: f" constant({float(m.group(1)) * 3 + 1!r})", s
        ),
    )
    yield from spread(
        "direction",
        r"source_target_pairs=",
        lambda s: re.sub(
            r"source_target_pairs=\{(.*?\})\}",
            lambda m: (
                "source_target_pairs={"
                + ",".join(f"{{{b},{a}}}" for a, b in re.findall(r"\{(\d+),(\d+)\}", m.group(1)))
                + "}"
            ),
            s,
        ),
    )
    yield from spread(
        "position",
        r" constant\(\{0, \d+(, \d+)+\}\)",
        lambda s: re.sub(r"constant\(\{(0), (.*?)\}\)", r"constant({\2, \1})", s),
    )
    yield from spread(
        "order",
        r" (all-to-all|all-gather|reduce-scatter)\(.*replica_groups=\{\{0,1,",
        lambda s: s.replace("replica_groups={{0,1,", "replica_groups={{1,0,"),
    )
    yield from spread(
        "unequal",
        r" compare\(.*direction=(EQ|NE)",
        lambda s: re.sub(
            r"direction=(EQ|NE)", lambda m: "direction=" + ("NE" if m.group(1) == "EQ" else "EQ"), s
        ),
    )
    yield from spread(
        "bounds",
        r" compare\(.*direction=(LT|GE)",
        lambda s: re.sub(
            r"direction=(LT|GE)", lambda m: "direction=" + ("LE" if m.group(1) == "LT" else "GT"), s
        ),
    )
    yield from spread(
        "integer",
        r"= s32\[\] constant\(\d+\)",
        lambda s: re.sub(r" constant\((\d+)\)", lambda m: f" constant({int(m.group(1)) + 1})", s),
    )
    yield from spread(
        "transposed",
        r"= f32\[(\d+),\1\]\S* (dot)\(%[\w.-]+, %[\w.-]+\)",
        lambda s: re.sub(r" dot\((%[\w.-]+), (%[\w.-]+)\)", r" dot(\2, \1)", s),
    )


def check(shardproof, name):
    problems = []
    model = os.path.join(HERE, name + ".single.hlo.gz")
    plan = os.path.join(HERE, name + ".spmd.hlo.gz")
    options = ["--accept", "integer-overflow"] if name in OVERFLOW else []
    if name in OVERFLOW:
        code, output = verify(shardproof, model, plan)
        if code != 4:
            problems.append(f"{name}: expected conditional, found exit code {code}:\n{output}")
    if name in IN_BOUNDS:
        code, output = verify(shardproof, model, plan)
        if code != 10:
            problems.append(
                f"{name}: expected not equivalent out of bounds, found exit code {code}:\n{output}"
            )
        options = ["--assume-in-bounds"]
    code, output = verify(shardproof, model, plan, *options)
    if code != (4 if name in IN_BOUNDS else 0):
        problems.append(f"{name}: expected equivalent, found exit code {code}:\n{output}")
    with gzip.open(plan, "rt") as file:
        text = file.read()
    refuted = 0
    # A plan that is wrong otherwise (layer_norm_adamw: the loss times 1.1, which shows only where
    # the optimiser is not evaluated).
    wrong = os.path.join(HERE, name + ".broken.hlo.gz")
    if os.path.exists(wrong):
        code, output = verify(shardproof, model, wrong)
        if code != 10:
            problems.append(
                f"{name}, as another program: expected not equivalent, found exit code {code}:\n"
                f"{output}"
            )
    with tempfile.TemporaryDirectory() as directory:
        for edit, broken in edits(text):
            if not edit.startswith(ONLY.get(name, "")):
                continue
            if edit in LEFT_OUT.get(name, ()):
                continue
            path = os.path.join(directory, "broken.hlo")
            with open(path, "w") as file:
                file.write(broken)
            # Of each program the first has its causes looked for, too.
            causes = ["--diagnose", "3"] if not refuted else []
            harmless = edit in HARMLESS.get(name, ())
            code, output = verify(shardproof, model, path, *options, *causes, harmless=harmless)
            if harmless:
                if code == 10 and name not in IN_BOUNDS:  # out of bounds it is another program
                    code, output = verify(
                        shardproof, model, path, "--assume-in-bounds", *options, harmless=True
                    )
                if code not in (0, 4, 5):
                    problems.append(
                        f"{name}, {edit}: expected equivalent, found exit code {code}:\n{output}"
                    )
            elif code == 10:
                refuted += 1
                # The report names the place: file, line, opcode.
                if not re.search(r"broken\.hlo:\d+ \S+", output):
                    problems.append(
                        f"{name}, {edit}: the report names no line of the program:\n{output}"
                    )
            elif code == 2:
                # What no longer fits together is an error with its place.
                if not re.search(r"broken\.hlo: line \d+, column \d+: ", output):
                    problems.append(f"{name}, {edit}: the message names no place:\n{output}")
            elif code != 5 or name not in OPAQUE:
                problems.append(
                    f"{name}, {edit}: expected not equivalent, found exit code {code}:\n{output}"
                )
    least = LEAST_BROKEN.get(name, LEAST_BROKEN_OTHERS)
    if refuted < least:
        problems.append(f"{name}: only {refuted} broken copies were refuted, expected {least}")
    return refuted, problems


def main():
    shardproof = os.path.abspath(sys.argv[1])
    names = sorted(
        os.path.basename(f)[: -len(".single.hlo.gz")]
        for f in glob.glob(os.path.join(HERE, "*.single.hlo.gz"))
    )
    assert len(names) >= 44, names
    names = sys.argv[2:] or names
    failed = False
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        for name, (refuted, problems) in zip(
            names, pool.map(lambda n: check(shardproof, n), names), strict=True
        ):
            print(
                f"{name}: proved, {refuted} broken copies refuted"
                if not problems
                else "\n".join(problems)
            )
            failed = failed or bool(problems)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
