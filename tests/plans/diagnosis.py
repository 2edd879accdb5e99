# SPDX-License-Identifier: Apache-2.0
"""The diagnosis of known bugs; scripts/diagnosis_table.py measures it.

The first cause and its sentence name the edited node or a neighbour. A fix is found and proved.
Where the diagnosis must report nothing, it does not.
"""

import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from lineage import is_cut_point
from plan_edit import EQUIVALENT, NOT_EQUIVALENT, SHARED, SLOW, Failure, Runner, expect_code

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
spec = importlib.util.spec_from_file_location(
    "diagnosis_table", ROOT / "scripts" / "diagnosis_table.py"
)
table = importlib.util.module_from_spec(spec)
spec.loader.exec_module(table)

PLANS = (
    {"mlp": None, "mlp, ZeRO 3": None, "llama3, sequence parallel": None}
    if not SLOW
    else dict.fromkeys(table.GENERATED)
)
# What is found must not depend on how fast this machine is just now.
AMPLE_RUN = ("--timeout", 500)
AMPLE_TIME = (*AMPLE_RUN, "--diagnose", 120)
# A bug that several changes at once would have to fix.
WITHOUT_MEND = {("scattered_before_tied", "gpt, tied")}
# Tried in the largest plan: without a reduction, over a wrong axis, a factor.
LARGEST = (
    "missing_all_reduce",
    "missing_all_reduce_backward",
    "wrong_group",
    "loss_scaled_wrongly",
)
EXCERPTS = {
    "plans": ("llama3_dp2_pp4_tp8_nm8_ly2", "llama3_dp64_pp4_tp8_nm8_ly2"),
    "bugs": (
        "pad_slice_mismatch",
        "vocabulary_window",
        "all_gather_for_all_reduce",
        "layer_skipped",
    ),
}
# What the sentence has to say, of bugs that it could say in other ways.
WORDS = {
    "missing_all_reduce_backward": "is missing",
    "wrong_group": "where it has to run over",
    "gradient_scaled_wrongly": "is one too many",
    "wrong_pipeline_peer": "send to",
    "parameter_not_updated": "unused",
    "divided_by_world_size_twice": "takes the mean where it has to add up",
    "constant_on_one_rank": "where it has to have",
    "exchanged_pipeline_peers": "which is the part of dp rank",
}


# Without lineage inside. In the second plan, what follows a wrong first layer is nothing of the
# model. A rank that differs from the others has its own program, also after the fix.
WITHOUT_CUT_POINTS = {
    "torch/llama_2layers_dp2_tp2": {
        "missing_all_reduce": "an all_reduce over tp is missing",
        "rope_offset": "",
        "vocabulary_window": "",
        "wrong_group": "where it has to run over",
        "constant_on_all_ranks": "has scalar 4 where it has to have 2",
        "constant_on_several_ranks": "has scalar 4 where it has to have 2",
    },
    "llama3_dp2_pp2_tp2_nm2_ly2": {
        "rope_offset": "is one too many",
        "vocabulary_window": "has start 1 where it has to have 0",
        "constant_on_one_rank": "has scalar 22.6",
    },
}
# The schedule names microbatches. The smaller plan that is examined has fewer, so its nodes have
# other places.
NAMED_MICROBATCHES = (
    "llama3 --size 8B --layers 4 --dp 4 --tp 2 --pp 2 --microbatches 8 --vocab-parallel "
    "--sequence-parallel --zero 1 --schedule 1f1b --recompute"
)
NAMED_MICROBATCHES_BUGS = ("missing_all_reduce_backward", "wrong_group")


def generate(runner, name):
    done = table.run(
        runner.program, "generate", *table.GENERATED[name].split(), "-o", runner.path("g")
    )
    if done.returncode != 0:
        raise Failure(done.stderr)
    return done.stdout.split()


def bug_in(runner, model, plan, name, bug, seed):
    scratch = runner.path("scratch")
    scratch.mkdir()
    m = table.Measurement(runner.program, model, plan, bug, seed, scratch, AMPLE_TIME)
    if not m.ok or m.code != NOT_EQUIVALENT:
        raise Failure(f"not refuted: exit {getattr(m, 'code', None)}")
    if not (m.named and m.told):
        raise Failure(f"neither {m.place} nor a neighbour is named: {m.sentence}")
    if m.proved == ((bug, name) in WITHOUT_MEND):
        raise Failure(f"fix: {m.fix or 'none'}, {'proved' if m.proved else 'not proved'}")
    if WORDS.get(bug, "") not in m.sentence:
        raise Failure(f"expected {WORDS[bug]!r} in: {m.sentence}")
    return f"{m.kind}: {m.sentence}"


def refuted_in(runner, model, plan, bug):
    """Refuted, whatever is said of the cause."""
    scratch = runner.path("scratch")
    scratch.mkdir()
    m = table.Measurement(runner.program, model, plan, bug, 1, scratch, AMPLE_RUN)
    if not m.ok or m.code != NOT_EQUIVALENT:
        raise Failure(f"not refuted: exit {getattr(m, 'code', None)}")


def bug_without_cut_points(runner, name, bug):
    """The first cause is the mistake and not a guessed lemma, and its fix is proved.

    Where the plan stops computing the model's tensors is found, and changed first.
    """
    plan = table.load(SHARED / "plans" / f"{name}.plan.json")
    plan["lineage"] = [entry for entry in plan["lineage"] if not is_cut_point(entry)]
    bare, wrong = runner.path("bare.json"), runner.path("wrong.json")
    bare.write_text(json.dumps(plan))
    table.run(runner.program, "mutate", bare, "--bug", bug, "-o", wrong)
    result = runner.verify(wrong, SHARED / "plans" / f"{name}.model.json", "--diagnose", "20")
    expect_code(result, NOT_EQUIVALENT)
    causes = result.report["causes"]
    if (
        len(causes) != 1
        or not causes[0]["fix"]
        or not causes[0]["fix"]["proved"]
        or WITHOUT_CUT_POINTS[name][bug] not in causes[0]["sentence"]
    ):
        raise Failure(
            f"expected one cause with a proved fix: {[cause['sentence'] for cause in causes]}"
        )


def right_plan(runner, model, plan):
    result = runner.verify(plan, model)
    expect_code(result, EQUIVALENT)
    if result.report["causes"] or "diagnose" in result.report["statistics"]["seconds_by_phase"]:
        raise Failure("a right plan was diagnosed")


def repaired(runner, model, plan):
    """A fixed plan is written only where the fix was proved, and verify proves it.

    Nothing is written for a right plan, nor without the diagnosis.
    """
    wrong, fixed = runner.path("wrong.json"), runner.path("fixed.json")
    table.run(runner.program, "mutate", plan, "--bug", "missing_all_reduce", "-o", wrong)
    expect_code(runner.verify(wrong, model, "--fix", fixed, "--diagnose", "off"), NOT_EQUIVALENT)
    if fixed.exists():
        raise Failure("written without a diagnosis")
    result = runner.verify(wrong, model, "--fix", fixed)
    expect_code(result, NOT_EQUIVALENT)
    if "proved fix: " not in result.out or f"{fixed}: written" not in result.err:
        raise Failure(result.out + result.err)
    expect_code(runner.verify(fixed, model), EQUIVALENT)
    other = runner.path("other.json")
    result = runner.verify(plan, model, "--fix", other)
    expect_code(result, EQUIVALENT)
    if other.exists() or "equivalent as it is" not in result.err:
        raise Failure(f"written of a right plan: {result.err}")


def explained(runner, model, plan):
    wrong, report = runner.path("wrong.json"), runner.path("report.json")
    table.run(runner.program, "mutate", plan, "--bug", "missing_all_reduce", "-o", wrong)
    table.run(runner.program, "verify", "--model", model, "--plan", wrong, "--json", report)
    done = table.run(runner.program, "explain", report)
    if (
        done.returncode != 0
        or "a partial sum over tp" not in done.stdout
        or "<- wrong" not in done.stdout
    ):
        raise Failure(done.stdout + done.stderr)
    dot = table.run(runner.program, "explain", report, "--format", "dot")
    if dot.returncode != 0 or not dot.stdout.startswith("digraph"):
        raise Failure(dot.stdout + dot.stderr)
    svg = table.run(runner.program, "explain", report, "--format", "svg")
    drawn = svg.returncode == 0 and "<svg" in svg.stdout and svg.stdout.rstrip().endswith("</svg>")
    if (
        not drawn
        if shutil.which("dot")
        else (svg.returncode == 0 or svg.stdout or "install graphviz" not in svg.stderr)
    ):
        raise Failure(svg.stdout + svg.stderr)
    without = subprocess.run(
        [runner.program, "explain", report, "--format", "svg"],
        capture_output=True,
        text=True,
        env={"PATH": str(runner.path("empty"))},
    )
    if without.returncode == 0 or without.stdout or "install graphviz" not in without.stderr:
        raise Failure(
            f"without graphviz: exit {without.returncode}: {without.stdout}{without.stderr}"
        )
    for arguments, code in ((["--cause", "2"], 1), ([str(plan)], 2)):
        done = table.run(
            runner.program, "explain", *([report] if arguments[0] == "--cause" else []), *arguments
        )
        if done.returncode != code or not done.stderr:
            raise Failure(f"{arguments}: exit {done.returncode}: {done.stderr}")


def readme(runner):
    """What the README shows of a wrong plan is what is printed, but for times and memory."""
    demo = runner.path("demo")
    table.run(sys.executable, ROOT / "scripts" / "make_demo_plan.py", demo)
    result = runner.verify(demo / "mlp_dropped_all_reduce.plan.json", demo / "mlp.model.json")
    printed = result.out.splitlines()
    shown = (
        (ROOT / "README.md")
        .read_text()
        .partition("    NOT EQUIVALENT: ")[2]
        .partition("\nThe exit code")[0]
        .splitlines()[1:]
    )
    missing = [
        line[4:]
        for line in shown
        if line.strip()
        and not line.strip().startswith(("Time:", "Memory:"))
        and line[4:] not in printed
    ]
    if missing or len(shown) < 20:
        raise Failure(f"not printed: {missing}")


def main():
    runner = Runner(sys.argv[1], causes=True)
    runner.case("readme", readme)
    for name in PLANS:
        model, plan = generate(runner, name)
        runner.case(f"right.{name}", right_plan, model, plan)
        counts = dict(
            line.split()[:2]
            for line in table.run(runner.program, "mutate", "--list", plan).stdout.splitlines()
        )
        for bug, count in counts.items():
            # The other plans hold what a plan of multilayer perceptrons has as well.
            if (
                not SLOW
                and name != "mlp"
                and bug
                in (
                    "missing_all_reduce_backward",
                    "dangling_all_reduce",
                    "gradient_scaled_wrongly",
                    "wrong_microbatch_gradient",
                )
            ):
                continue
            for seed in range(1, 1 + min(4 if SLOW else 1, int(count))):
                runner.case(f"{bug}.{name}.{seed}", bug_in, model, plan, name, bug, seed)
        if name == "mlp":
            runner.case("repair", repaired, model, plan)
            runner.case("explain", explained, model, plan)
    for name, bugs in WITHOUT_CUT_POINTS.items():
        if (SHARED / "plans" / f"{name}.plan.json").exists():
            for bug in bugs:
                runner.case(f"{bug}.{name}.without cut points", bug_without_cut_points, name, bug)
    made = table.run(
        runner.program, "generate", *NAMED_MICROBATCHES.split(), "-o", runner.path("named")
    ).stdout.split()
    for bug in NAMED_MICROBATCHES_BUGS:
        runner.case(f"{bug}.named microbatches", bug_in, *made, "named microbatches", bug, 1)
    # The largest: 8,192 ranks, causal masks that nobody can evaluate whole.
    made = table.run(
        runner.program, "generate", *table.LARGE["L3"].split(), "-o", runner.path("L3")
    ).stdout.split()
    for bug in LARGEST if not SLOW else counts:
        runner.case(f"largest_{bug}.L3", bug_in, *made, "L3", bug, 1)
    # 512 ranks that each hold another piece: too much for the finer coarse masks.
    made = table.run(
        runner.program, "generate", *table.LARGE["L1"].split(), "-o", runner.path("L1")
    ).stdout.split()
    runner.case(
        "large_reduce_scatter_for_all_reduce.L1", refuted_in, *made, "reduce_scatter_for_all_reduce"
    )
    # 64 and 2,048 ranks, whose whole image is too large. A shift keeps a dimension whole, a window
    # a vocabulary, a `cat` of 64 pieces all ranks.
    for name in EXCERPTS["plans"]:
        plan = SHARED / "plans" / f"{name}.plan.json.gz"
        if plan.exists():
            for bug in EXCERPTS["bugs"]:
                runner.case(
                    f"{bug}.{name}",
                    bug_in,
                    SHARED / "plans" / f"{name}.model.json",
                    plan,
                    name,
                    bug,
                    1,
                )
    return runner.run()


if __name__ == "__main__":
    sys.exit(main())
