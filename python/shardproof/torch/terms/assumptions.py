# SPDX-License-Identifier: Apache-2.0
"""What a verdict rests on beside the theorem, and what of a step is not compared.

One place for the name, the class and the sentence of each. The class is what a false one would
mean (docs/soundness.md, "Assumptions"): a `RISK` makes an EQUIVALENT verdict CONDITIONAL until the
user accepts it by its name.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Sequence
from typing import Any

MOST_NAMED = 4  # parameters in one sentence


def listed(names: Iterable[str], most: int = MOST_NAMED) -> str:
    """The first names, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more


class Kind(str, enum.Enum):
    """What happens if an assumption is false."""

    HARMLESS = "harmless"  # no bug can hide behind it
    CHECKABLE = "checkable"  # the user can look at the named place and check it
    RISK = "risk"  # a real bug could hide behind it


@dataclasses.dataclass(frozen=True)
class Assumption:
    """One assumption. name: for `--accept`; text: one sentence."""

    name: str
    kind: Kind
    text: str

    def __str__(self) -> str:
        return self.text

    def json(self) -> dict[str, Any]:
        return {"name": self.name, "class": self.kind.value, "text": self.text}


@dataclasses.dataclass(frozen=True)
class NotCompared:
    """A tensor or number of the step that the verdict does not cover."""

    what: str
    because: str

    def __str__(self) -> str:
        return f"{self.what} is not compared: {self.because}"

    def json(self) -> dict[str, Any]:
        return {"what": self.what, "because": self.because}


CLASSES = Assumption(
    "classes",
    Kind.CHECKABLE,
    "labels and tokens are classes: 0 up to the size of the table or of the last dimension",
)
GATHERED = Assumption(
    "nccl-gather-gradients",
    Kind.CHECKABLE,
    "gradients of torch.distributed.nn.functional's all_gather and all_to_all are what they are on"
    " NCCL: where they are not contiguous, gloo mixes up their elements (a .clone() of what was"
    " gathered keeps them contiguous)",
)
POSITIVE = Assumption(
    "positive-base",
    Kind.CHECKABLE,
    "what is raised to a power that depends on data is positive: inputs for which it is zero (or"
    " negative) are left out",
)
NON_NEGATIVE_PARTS = Assumption(
    "non-negative-parts",
    Kind.HARMLESS,
    "sums and parts of what is never negative on one rank have none that is from other ranks"
    " either",
)
NOT_BELOW_ZERO = Assumption(
    "sums-not-negative",
    Kind.RISK,
    "a comparison with 0 is decided by this rank's part: what other ranks add to a sum of numbers"
    " that are never negative here (the square of a norm) is not negative either",
)
EACH_ROW_SEEN = Assumption(
    "masked-rows", Kind.CHECKABLE, "of scores that are masked by data each row has one that is seen"
)
BROUGHT_IS_NUMBER = Assumption(
    "finite-received",
    Kind.CHECKABLE,
    "what comes from other ranks is a number where it is multiplied by zero",
)
BOTH_CHOICES_ARE_NUMBERS = Assumption(
    "finite-choices",
    Kind.CHECKABLE,
    "where one of two numbers is chosen (torch.where, masked_fill, tril, cumsum and the like) both"
    " are numbers: inputs for which the other one is not-a-number are left out",
)
NO_INFINITIES = Assumption(
    "real-numbers", Kind.HARMLESS, "isnan and isinf are false: the verdict is about real numbers"
)
FACTORIZATIONS = Assumption(
    "factorizations", Kind.CHECKABLE, "inverses and factorizations of matrices exist (`info` is 0)"
)
TIES = Assumption(
    "ties",
    Kind.CHECKABLE,
    "top-k, sort, arg-max, medians and running extrema choose the first of equal numbers",
)
BOUNDARIES = Assumption(
    "boundaries", Kind.CHECKABLE, "a number that is counted among boundaries is none of them"
)
FUTURES = Assumption(
    "futures",
    Kind.CHECKABLE,
    "who asks for the future of an asynchronous call (get_future) reads nothing of it before it is"
    " done",
)
NUMBER_TEXT = Assumption(
    "number-text",
    Kind.CHECKABLE,
    "what other code than Python's operators and `math` reads of a number that Tensor.item() gave"
    " decides nothing (it was recorded again with another number in its place)",
)


def not_raised(loc: str) -> Assumption:
    return Assumption(
        "not-raised",
        Kind.RISK,
        f"the program does not raise an error at {loc}, where it compares what depends on "
        "data: one rank might, and others not",
    )


def rows_present(loc: str) -> Assumption:
    return Assumption(
        "rows-present",
        Kind.RISK,
        f"what the program does only where there are rows, or for each row, at {loc} leaves all "
        "else as it is where there is none (an expert that no token chooses)",
    )


def drawn_number(loc: str) -> Assumption:
    return Assumption(
        "drawn-numbers",
        Kind.CHECKABLE,
        f"Python decides by numbers that are drawn at {loc}: the program is that of the numbers "
        "that were drawn in this run",
    )


def changed_gradients(optimizer: str) -> Assumption:
    return Assumption(
        "changed-gradients",
        Kind.CHECKABLE,
        f"{optimizer} changes gradients in its step: they are compared as they were before it, and "
        "nobody reads what it leaves in .grad",
    )


def rest_of_script(
    steps: list[int], ended: tuple[str, str] | None, without_rest: str, why_more: str = ""
) -> Assumption:
    """A script was stopped when each of its optimizers had made so many steps.

    ended: how it began its next step, and where, if what follows the step is recorded.
    without_rest: why that is not; empty if the script was stopped before. why_more: what only a
    further step shows, where one was recorded for that.
    """
    most = max(steps, default=1)
    if not most:
        at = f" until {ended[0]}{f' at {ended[1]}' if ended[1] else ''}" if ended else ""
        return Assumption(
            "rest-of-script",
            Kind.CHECKABLE,
            "with these answers about data no optimizer steps: what the script does was verified"
            f"{at}, with models, optimizers and gradients as they are then",
        )
    first = f"first {most} steps" if most > 1 else "first step"
    if len(steps) <= 1:
        what = first.replace("step", "optimizer step")
    elif len(set(steps)) == 1:
        what = f"{first} of each optimizer"
    else:
        what = f"first steps of each optimizer ({', '.join(map(str, steps))})"
    were = "were" if most > 1 else "was"
    if why_more:
        what += f" (the last shows what becomes of {why_more})"
    if ended is not None:
        at = f" at {ended[1]}" if ended[1] else ""
        text = (
            f"only the {what} {were} verified, with what the script then does to models, "
            "optimizers, and the copies of weights and printed numbers that are listed as "
            f"compared, until {ended[0]}{at}: not its other variables, nor what it does afterwards"
        )
    else:
        text = f"only the {what} {were} verified, not what the script does afterwards"
        if without_rest:
            text += f" (until its next batch that is not compared, as {without_rest})"
    return Assumption("rest-of-script", Kind.CHECKABLE, f"{text}; --steps N verifies more")


def ranks_apart(how: str) -> Assumption:
    return Assumption(
        "ranks-apart",
        Kind.RISK,
        "what the script does after the optimizer's step is not compared, as ranks (or the single "
        f"device) differ there: {how}",
    )


def converted(convert: str, tensors: int, rearranged: int) -> Assumption:
    return Assumption(
        "converted-parameters",
        Kind.CHECKABLE,
        f"the ranks' parameters are those that {convert} gives of the single device's ({tensors} "
        f"tensors, {rearranged} of them rearranged), and so are gradients, new parameters and "
        "states",
    )


def states_gone(rank: int, names: str) -> Assumption:
    return Assumption(
        "ranks-apart",
        Kind.RISK,
        f"after the optimizer's step the script drops states of optimizers on rank {rank} and not "
        f"on the single device, or the other way round: {names}",
    )


def shown_later(what: str, names: str, why: str) -> NotCompared:
    reason = f"which is not followed ({why})" if why else "which was not looked at"
    return NotCompared(
        f"what becomes of {what} ({names})",
        f"only the next step shows it, {reason}",
    )


def schedule_apart(name: str, rank: int, there: float, here: float) -> Assumption:
    return Assumption(
        "schedule",
        Kind.CHECKABLE,
        f"{name} of the next step is not compared: it is {there:.6g} on rank {rank} and {here:.6g} "
        "on the single device, where the script itself reads other batches than the ranks' "
        "together, and may count them",
    )


def scheduler_steps_apart(name: str, rank: int, there: int, here: int) -> Assumption:
    return Assumption(
        "scheduler-steps",
        Kind.RISK,
        f"{name} of the next step is not compared: until then schedulers have made {there} steps "
        f"on rank {rank} and {here} on the single device, where the script itself reads other "
        "batches than the ranks' together, and may count them. A scheduler that is stepped once "
        "for each rank looks the same",
    )


def copies_left(rank: int, names: str) -> Assumption:
    return Assumption(
        "copies-left",
        Kind.CHECKABLE,
        f"rank {rank} leaves {names} as they are: they are compared on the ranks that update them, "
        "and nobody uses them elsewhere",
    )


def counted_apart(label: str) -> Assumption:
    return Assumption(
        "counted-samples",
        Kind.RISK,
        f"{label} is not compared: on the single device, where the script itself reads smaller "
        "batches than the ranks' together, it is larger by as much, as a sum is that is divided by "
        "their size. A number that is divided by the ranks once too often looks the same",
    )


def fraction(constant: float, stands_for: str) -> Assumption:
    """A constant that was computed in doubles."""
    return Assumption(
        "fractions", Kind.HARMLESS, f"the constant {constant!r} stands for {stands_for}"
    )


def placement_from_shape(names: str) -> Assumption:
    return Assumption(
        "placement-from-shape",
        Kind.CHECKABLE,
        f"where the ranks' parts of {names} lie was concluded from shapes",
    )


def draws_by_position(places: str) -> Assumption:
    return Assumption(
        "draws-by-position",
        Kind.CHECKABLE,
        f"random numbers drawn at {places}: each rank's are those of the single device"
        " at the same positions",
    )


def same_seed(places: str, axes: str) -> Assumption:
    return Assumption(
        "same-seed",
        Kind.RISK,
        f"random numbers drawn at {places}: ranks along {axes} draw the same ones (one"
        " seed) for their parts of the batch; taken to be different ones",
    )


def permuted_parts(loc: str, axes: str) -> Assumption:
    return Assumption(
        "permuted-parts",
        Kind.RISK,
        f"the random permutation of the batch drawn at {loc}: each rank along {axes} permutes its"
        " own samples, and the single device is taken to permute each rank's among themselves, not"
        " all of the batch",
    )


def processes_among_arguments(count: int, several: bool) -> Assumption:
    """several: more than one argument is that number, which may not be that of processes."""
    if several:
        return Assumption(
            "world-size",
            Kind.RISK,
            f"several arguments of the function that processes run are {count}, the number of "
            "processes: all of them are 1 on the single device",
        )
    return Assumption(
        "processes",
        Kind.CHECKABLE,
        f"the script starts one process on the single device; the number {count} among the "
        "arguments of its function, which is that of the processes, is 1 there",
    )


COUNTED_DEVICES = "devices"


def counted_devices(count: int) -> Assumption:
    return Assumption(
        COUNTED_DEVICES,
        Kind.CHECKABLE,
        f"the number of GPUs is {count} on the single device, too",
    )


def computes_with_devices(count: int) -> Assumption:
    return Assumption(
        "world-size",
        Kind.RISK,
        f"the number of GPUs is {count} on the single device, too: with 1 the script computes "
        "something else there (it divides by that number, say)",
    )


def other_world_size(count: int) -> Assumption:
    return Assumption(
        "world-size",
        Kind.RISK,
        f"the script gives init_process_group the world size {count} on the single device, too: "
        f"what it computes with its own number {count} is not what it computes with 1",
    )


def other_mesh(sizes: tuple[int, ...]) -> Assumption:
    return Assumption(
        "world-size",
        Kind.RISK,
        f"the script makes a mesh of fixed sizes, {' x '.join(map(str, sizes))}, which has one "
        "rank on the single device: what it computes with these numbers is not what it computes "
        "with 1",
    )


def other_root(root: int, loc: str) -> Assumption:
    return Assumption(
        "root-rank",
        Kind.CHECKABLE,
        f"the single device is the rank {root} of the collective at {loc}, as it is the only rank",
    )


def device_seeds(loc: str) -> Assumption:
    return Assumption(
        "cuda-seeds",
        Kind.RISK,
        f"random numbers drawn at {loc} are taken to be drawn on the GPU, whose seed"
        " torch.cuda.manual_seed sets: on the CPU ranks draw different ones"
        " (torch.manual_seed seeds both)",
    )


def batch_of_all(loc: str, axes: str, seeds: str) -> Assumption:
    return Assumption(
        "batch",
        Kind.CHECKABLE,
        f"random numbers drawn at {loc}: ranks along {axes} draw their own{seeds}; the"
        " single device's batch is theirs, one after another",
    )


def loaded_batches(
    source: str, sizes: Sequence[int], axes: str, together: bool, alone: int, rows: str
) -> Assumption:
    """sizes: samples of each rank along the axes. alone: what the script reads on one device. rows:
    the shapes of a rank's tensors.
    """
    if not axes:
        text = f"single device: batch of {sizes[0]}, the same as on every rank,"
    elif together:
        own = f"{len(sizes)} x {sizes[0]}" if len(set(sizes)) == 1 else " + ".join(map(str, sizes))
        text = f"single device: batch of {sum(sizes)} = {own} (ranks along {axes}, in order)"
    else:
        text = (
            f"single device: batches of {sizes[0]}, those of the ranks along {axes} one after "
            "another"
        )
    whole = sum(sizes) if together else sizes[0]
    other = f"; run on one device, the script itself reads {alone}" if alone != whole else ""
    shapes = f"; each rank's: {rows}" if rows else ""
    return Assumption("batch", Kind.CHECKABLE, f"{text} from {source}{shapes}{other}")


def arrays_of_ranks(loc: str, axes: str) -> Assumption:
    return Assumption(
        "own-arrays",
        Kind.RISK,
        f"the arrays that {loc} moves to a device differ between ranks along {axes}; they are "
        "taken to be samples of each rank",
    )


def batches_as_read(why: str) -> Assumption:
    return Assumption(
        "batches-as-read",
        Kind.RISK,
        "the batches of DataLoaders are those that the ranks read, on the single device of their "
        "samples, so that nothing is known of other batches: with the batches as inputs the "
        f"step cannot be followed ({why})",
    )


def read_by_some(loader: str) -> Assumption:
    return Assumption(
        "batches-as-read",
        Kind.RISK,
        f"the batches of the DataLoader at {loader}, which not all ranks and the single device "
        "read, are those that were read, so that nothing is known of other batches",
    )


def as_read(loader: str, path: str, kind: str, apart: bool = False) -> Assumption:
    """apart: of all ranks' samples its collation makes something else than of each rank's."""
    if apart:
        kind += ", which its collate_fn does not make of one sample after another"
    what = f"{path!r} ({kind})" if path else kind
    return Assumption(
        "batch-constants",
        Kind.RISK,
        f"what the DataLoader at {loader} yields as {what} is no input but what was read, whatever "
        "the program computes or decides by it",
    )


def mixed_samples(loader: str, path: str) -> Assumption:
    return Assumption(
        "mixed-samples",
        Kind.RISK,
        f"what the DataLoader at {loader} yields{f' as {path!r}' if path else ''} has samples "
        "mixed at random by its collate_fn: each rank mixes its own, as the single device is taken "
        "to",
    )


def padded(loader: str, lengths: Sequence[int]) -> Assumption:
    return Assumption(
        "padding",
        Kind.RISK,
        f"ranks pad what the DataLoader at {loader} yields to lengths of their own "
        f"({', '.join(map(str, sorted(lengths)))}): all are taken to pad to the longest, as the "
        "single device does. A result that depends on padding (a mean over it, statistics of a "
        "batch) is another one on real ranks",
    )


def integers_decide(loc: str, below: int) -> Assumption:
    return Assumption(
        "loaded-integers-decide",
        Kind.RISK,
        f"what is computed of integers at {loc} is the same for all below {below}, as all that "
        "were read are: other data may have others",
    )


def drawn_apart(place: str) -> Assumption:
    return Assumption(
        "drawn-decisions",
        Kind.RISK,
        f"ranks decide at {place} by random numbers of their own: the programs are those of the "
        "numbers that were drawn in this run, and others may differ",
    )


def python_random(generator: str, apart: bool) -> Assumption:
    if apart:
        return Assumption(
            "python-random",
            Kind.RISK,
            f"ranks draw other numbers from Python's `{generator}`, which the script does not seed "
            "alike: the programs are those of the numbers that were drawn in this run",
        )
    return Assumption(
        "python-random",
        Kind.CHECKABLE,
        f"the script draws from Python's `{generator}`, on all ranks the same: the program is that "
        "of the numbers that were drawn in this run",
    )


def array_numbers(places: str, apart: bool) -> Assumption:
    if apart:
        return Assumption(
            "own-arrays",
            Kind.RISK,
            f"ranks compute with arrays of their own at {places}, as those of files: what is "
            "proved is proved of the numbers that were read",
        )
    return Assumption(
        "arrays",
        Kind.CHECKABLE,
        f"the arrays that are used at {places} have the numbers of this run on all ranks",
    )


def drawn_for_batches(loader: str) -> Assumption:
    return Assumption(
        "same-batch",
        Kind.RISK,
        f"ranks that read the same samples of the DataLoader at {loader} draw other numbers from "
        "Python's `random` or numpy's while they read them: their batches are taken to be the same",
    )


def not_dealt(loader: str, axes: str, other: str) -> Assumption:
    return Assumption(
        "same-batch",
        Kind.RISK,
        f"all ranks along {axes} read the same samples of the DataLoader at {loader}, and samples "
        f"of their own of that at {other}",
    )


def dealt_to(loader: str, replicas: int, ranks: int) -> Assumption:
    return Assumption(
        "dealt-samples",
        Kind.RISK,
        f"the DistributedSampler of the DataLoader at {loader} deals out samples to {replicas} "
        f"ranks, and {ranks} read samples of their own: some are read twice, or never",
    )


def loaded_below(name: str, below: int) -> Assumption:
    return Assumption(
        "loaded-integers",
        Kind.CHECKABLE,
        f"the integers of {name} are below {below}, as all that were read are",
    )


def same_batch(axis: str, loc: str, seeds: str) -> Assumption:
    drawn = f": drawn at {loc}{seeds or ' with one state of the generator'}" if loc else ""
    return Assumption(
        "same-batch",
        Kind.RISK,
        f"the batch is taken to be the same on all ranks along {axis}, which compute"
        f" from the same numbers{drawn}",
    )


def answered(place: str, answer: bool, several: bool) -> Assumption:
    """several: one step asks there more than once."""
    yes = "yes" if answer else "no"
    if several:
        return Assumption(
            "answers-alike",
            Kind.RISK,
            f"{place} asks several times in one step what depends on data: the answers are taken "
            "to be the same, all yes or all no",
        )
    return Assumption(
        "each-answer",
        Kind.CHECKABLE,
        f"{place} asks what depends on data, and the answer makes another program: this is the one "
        f"for {yes}; the other was verified, too, the number that decides is compared, and what it "
        "is compared with is the same to 12 digits",
    )


def gradients_left(names: str, over: bool) -> Assumption:
    """over: the script was recorded to its end."""
    return Assumption(
        "gradients-left",
        Kind.HARMLESS if over else Kind.RISK,
        f"what is left in .grad ({names}) is not the single device's gradient, as that of a rank's "
        "own samples is not, and is not compared; what the optimizers make of it is. "
        + (
            "The script ends, and reads it no more"
            if over
            else "Nothing is to read it later: norms that are printed, steps that add to it"
        ),
    )


def gradients_cleared() -> Assumption:
    return Assumption(
        "gradients-cleared",
        Kind.HARMLESS,
        "what backward leaves in .grad of parameters that no optimizer has is not compared, as the "
        "script clears it before its next step, or ends, and computes nothing of it after its "
        "step; copies of it that the script keeps in variables of its own are not looked at",
    )


def zero_padding(names: str) -> Assumption:
    return Assumption(
        "zero-padding",
        Kind.CHECKABLE,
        f"parts of {names} are padded to one size with zeros, as they are at first",
    )


def padding_left(names: str) -> Assumption:
    return Assumption(
        "padding-left",
        Kind.RISK,
        f"the step leaves other numbers than zeros in {names}; what later steps compute with them "
        "is not compared",
    )


def own_padding(names: str) -> Assumption:
    return Assumption(
        "own-padding",
        Kind.HARMLESS,
        f"ranks' parts of {names} are together longer than the single device's; what they have "
        "more is any numbers, and the results do not depend on these",
    )


def same_initial(name: str, axes: str, where: str) -> Assumption:
    return Assumption(
        "initial-values",
        Kind.RISK,
        f"ranks along {axes} begin with the same numbers in different parts of {name}"
        f" ({where}); taken to be any numbers",
    )


def unchecked_parts(names: str) -> Assumption:
    return Assumption(
        "initial-values",
        Kind.RISK,
        f"the first values of {names} are taken to be the ranks' parts of the single device's: they"
        " are made of the same random numbers, of files or of messages, in a way that is not"
        " followed",
    )


def given_initial(names: str) -> Assumption:
    return Assumption(
        "given-initial-values",
        Kind.CHECKABLE,
        f"the first values of {names} are given: the step seeds nothing, and ranks that"
        " hold the same of them have drawn other shapes before",
    )


def initial_values(names: str, why: str) -> Assumption:
    return Assumption(
        "initial-values",
        Kind.RISK,
        f"the first values of {names} are taken to be the same on the ranks that hold"
        f" them: they cannot be followed ({why})",
    )


def labels_valid(loc: str, ignore: int) -> Assumption:
    return Assumption(
        "labels-valid",
        Kind.RISK,
        f"labels at {loc} are all taken to count: none equals ignore_index {ignore}"
        " (where some may, ranks have different numbers of labels that count, and"
        " their means are not the mean of all)",
    )


def made_buffer(name: str, why: str) -> Assumption:
    return Assumption(
        "initial-buffers",
        Kind.CHECKABLE,
        f"the buffer {name} begins with the number that it was made with, not with"
        f" any value: {why}",
    )


def left_by_some(ranks: str, names: str) -> Assumption:
    return Assumption(
        "missing-gradients",
        Kind.CHECKABLE,
        f"no gradient is left on {ranks} in {names}: it is compared where there is one",
    )


def trained_by_some(ranks: str, names: str) -> Assumption:
    return Assumption(
        "trained-by-some",
        Kind.RISK,
        f"{ranks}: {names} are made there and not used in what was looked at, and not compared: "
        "other ranks train them. What uses them later uses other values",
    )


def ranks_identical(text: str) -> Assumption:
    return Assumption("identical-ranks", Kind.CHECKABLE, text)


def opaque(text: str) -> Assumption:
    return Assumption("opaque-functions", Kind.CHECKABLE, text)


FIRST_OPTIMIZER_STEP = "first-optimizer-step"


def first_step(optimizer: str, why: str) -> Assumption:
    return Assumption(
        FIRST_OPTIMIZER_STEP,
        Kind.CHECKABLE,
        f"the state of {optimizer} begins as it is before the first step: {why}",
    )


def no_step(optimizer: str, parameters: int) -> NotCompared:
    return NotCompared(
        f"the step of {optimizer} of {parameters} parameters",
        "it did not step in what was looked at",
    )


def other_result(label: str, why: str) -> NotCompared:
    return NotCompared(f"the step's result {label!r}", why)
