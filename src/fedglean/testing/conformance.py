"""The check of the contract: `check_method` runs a method on awkward clients in all the ways that
must not matter.

Each check compares with one reference run, in float64 on the CPU, and says in a sentence which rule
was broken and where to look. A method that passes can be run by every executor and placement,
killed, resumed and attacked.
"""

import dataclasses
import functools
import importlib.util
import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedglean import tree
from fedglean.engine.signature import known
from fedglean.engine.stack import Stack
from fedglean.engine.workers import Workers
from fedglean.exchange.gate import Envelope
from fedglean.inputs.images import Images
from fedglean.method import Method, Mixture, Train
from fedglean.runs.evaluate import Predictor, logits
from fedglean.runs.experiment import Experiment
from fedglean.runs.folder import Progress
from fedglean.testing.compare import difference
from fedglean.testing.faults import drop, not_a_number, poison
from fedglean.testing.generators import untouched_generators
from fedglean.testing.lanes import Backwards, Notebook, TwoLanes
from fedglean.testing.trial import (
    Outcome,
    Watched,
    Wire,
    disguised,
    play,
    restarted,
    served,
    small_experiment,
)

ROUNDING = 1e-10


@dataclass(frozen=True)
class Case:
    """A method on the small federation, where it stood after round 1, and what its reference run
    came to.
    """

    experiment: Experiment
    first: Progress
    outcome: Outcome
    uploads: tuple[Envelope, ...]
    trainings: tuple[Train, ...]


def check_method(
    method: Method,
    *,
    model: str = "cnn",
    norm: str = "static",
    rounds: int = 3,
    use: Path | str | None = None,
) -> None:
    """Check a method: raise an `AssertionError` at the first rule of the contract that it breaks.

    Choose settings with which clients train from the first round (a low threshold, all of them
    taking part), and few epochs: the method is run half a dozen times. `use` is the Python file of
    the model, if it is your own.
    """
    check_immutable(method)
    settings = dict(vars(method))
    experiment = small_experiment(method, model, norm, rounds, use)
    with untouched_generators(1):
        case = reference(experiment)
    assert vars(method) == settings, (
        "the method object changed during a run; what changes belongs in the state"
    )
    for check in CHECKS:
        check(case)


def check_immutable(method: Method) -> None:
    kind = type(method)
    frozen = dataclasses.is_dataclass(method) and kind.__dataclass_params__.frozen
    assert frozen, (
        f"{kind.__name__} is not a frozen dataclass; put @dataclass(frozen=True) above it"
    )
    for name, value in vars(method).items():
        plain = value is None or isinstance(value, bool | int | float | str)
        assert plain, (
            f"setting '{name}' is a {type(value).__name__}; settings must be numbers, text, true "
            "or false"
        )


def reference(experiment: Experiment) -> Case:
    """One run under observation: what is lent out must come back as it was."""
    watched = served(experiment, Notebook, Watched)
    passed: list[Progress] = []

    def note(progress: Progress) -> Progress:
        passed.append(restarted(progress))
        return progress

    outcome = play(watched, between=note)
    placement = watched.placement
    assert isinstance(placement, Watched) and isinstance(placement.executor, Notebook)
    return Case(
        experiment,
        passed[0],
        outcome,
        tuple(placement.uploads),
        tuple(placement.executor.trainings),
    )


def check_clients_take_part(case: Case) -> None:
    lines = case.outcome.history
    refused = [refusal["reason"] for line in lines for refusal in line["refused"]]
    assert not refused, f"the gate refused an honest upload: {refused[0] if refused else ''}"
    asked = sum(line["answered"] + line["abstained"] for line in lines)
    if not asked:
        return
    answered = sum(line["answered"] for line in lines)
    assert answered or not case.trainings, (
        "clients are trained but send nothing; does the function return an Upload?"
    )
    assert answered, (
        "every client abstained in every round; choose settings with which some of them train"
    )
    assert case.trainings, "no client was ever trained; choose settings with which some of them are"


def check_uploads_are_sums_to_be(case: Case) -> None:
    """Integers and truth values have no mean."""
    for envelope in case.uploads:
        for name, sent in envelope.upload.trees.items():
            for path, leaf in tree.named(sent).items():
                what = f"client {envelope.client} uploads '{name}' with {path} of {leaf.dtype}"
                assert leaf.is_floating_point(), f"{what}; only floats can be averaged"


def check_steps_capture_nothing(case: Case) -> None:
    """A tensor in a closure is the same for all clients of a stack, whoever it belongs to."""
    for training in case.trainings:
        for value in _captured(training.step or training.loss):
            found = [
                leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor | Images)
            ]
            assert not found, (
                f"{_name(training)} captures a {type(found[0]).__name__} in a closure; "
                "what differs between clients goes into frozen, memory or a stream's labels"
            )


def check_steps_are_one_for_all(case: Case) -> None:
    """A function that is made anew is another one for each client: nothing is stacked, nothing
    written down twice.
    """
    seen: dict[Any, Any] = {}
    for training in case.trainings:
        function = known(training.step or training.loss)
        first = seen.setdefault(
            getattr(function, "__code__", None) or getattr(function, "func", function), function
        )
        assert first == function, (
            f"{_name(training)} is made anew for each training, so no two of them can be stacked; "
            "define it once, as a "
            "method or beside the class, and give it what differs in frozen"
        )


def check_what_must_not_matter(case: Case) -> None:
    """All at once, which is fast; one by one only to find out what it was that mattered."""
    everything = served(disguised(case.experiment), Backwards, Wire)
    lifted = served(case.experiment, TwoLanes, block=3)
    try:
        with untouched_generators(2):
            same(case, play(everything, between=restarted), "the result is not reproducible")
        close(case, play(lifted), "the engine changes the result by more than rounding")
    except AssertionError:
        for check in ONE_BY_ONE:
            check(case)
        raise


def check_repeatable(case: Case) -> None:
    with untouched_generators(2):
        again = play(case.experiment)
    same(
        case,
        again,
        "a second run gives a different result: something outside state and keep is remembered or "
        "drawn",
    )


def check_hidden_labels(case: Case) -> None:
    broken = (
        "hidden labels, or where an image lies in the store, change the result: a client knows "
        "me.labelled.label"
    )
    same(case, play(disguised(case.experiment)), f"{broken} and no other label")


def check_order_of_clients(case: Case) -> None:
    other = play(served(case.experiment, Backwards))
    same(
        case,
        other,
        "the order in which clients are served changes the result: they share something",
    )


def check_bytes(case: Case) -> None:
    """Resumed after every round, every message and upload sent as bytes."""
    other = play(served(case.experiment, kind=Wire), between=restarted)
    same(
        case,
        other,
        "a run that is resumed from stored state gives a different result: something is kept "
        "elsewhere",
    )


def check_blocks(case: Case) -> None:
    other = play(served(case.experiment, block=3))
    close(case, other, "the cut into blocks changes the result by more than rounding")


def check_lifting(case: Case) -> None:
    broken = "a training step cannot be lifted by torch.func.vmap, so clients cannot be stacked"
    try:
        other = play(served(case.experiment, TwoLanes))
    except AssertionError as error:
        raise AssertionError(f"{broken}: {error}") from error
    close(case, other, f"{broken}: beside another client a client's result changes")


def check_stacked(case: Case) -> None:
    """In blocks of four, each of them one tensor program; in worker processes where the system has
    them.
    """
    stacked = served(case.experiment, Stack, block=4)
    close(
        case,
        play(stacked),
        "clients stacked into one tensor program give a different result from clients one by one",
    )
    if "fork" in multiprocessing.get_all_start_methods():
        sent_out = served(case.experiment, Stack, Workers, block=4, workers=2)
        with sent_out.placement:
            close(
                case,
                play(sent_out),
                "clients served by worker processes give a different result from clients served "
                "here",
            )


def check_federated(case: Case) -> None:
    """On Flower, where it is installed: clients are branches that are told everything in
    letters.
    """
    if importlib.util.find_spec("flwr") is None:
        return
    from fedglean.testing.federated import federated, with_states

    with TemporaryDirectory() as name:
        folder = Path(name)
        outcome = play(federated(case.experiment, folder))
        other = with_states(outcome, folder, case.experiment.config.names)
    close(case, other, "a federation on Flower gives a different result from a simulation")


def check_poisoned_neighbour(case: Case) -> None:
    """A refused upload is as good as one that was never sent, the client's own state included."""
    hits = {(envelope.round, envelope.client) for envelope in case.uploads if envelope.round == 2}
    if not hits:
        return
    hit = max(hits)
    faults = drop(hit), poison(not_a_number, hit)
    without, poisoned = (
        play(served(case.experiment, deliver=fault), begin=restarted(case.first))
        for fault in faults
    )
    refused = [refusal for line in poisoned.history for refusal in line["refused"]]
    assert refused, f"a NaN in the upload of client {hit[1]} was not refused"
    found = difference(without.tree, poisoned.tree)
    assert found is None, f"a refused upload leaves a trace, as one never sent would not: {found}"


def check_predictors(case: Case) -> None:
    experiment = case.experiment
    predictors = experiment.method.predictors(case.outcome.state)
    assert predictors, "predictors(state) names nothing; the first one is the result of a run"
    images = experiment.dataset.test_images[:50]
    for name, predictor in predictors.items():
        output = logits(predictor, images, experiment.placement.executor.setting)
        assert not _lacks_statistics(predictor), (
            f"predictor '{name}' has no batch-norm statistics, so its answers depend on what else "
            "is in a batch; "
            "fedglean.methods.common.with_statistics adds them"
        )
        assert output.shape == (50, 10), (
            f"predictor '{name}' gives {tuple(output.shape)} for 50 images of 10 classes"
        )
        assert bool(torch.isfinite(output).all()), (
            f"predictor '{name}' gives logits that are not finite"
        )


CHECKS: tuple[Callable[[Case], None], ...] = (
    check_clients_take_part,
    check_uploads_are_sums_to_be,
    check_steps_capture_nothing,
    check_steps_are_one_for_all,
    check_predictors,
    check_what_must_not_matter,
    check_stacked,
    check_federated,
    check_poisoned_neighbour,
)
ONE_BY_ONE: tuple[Callable[[Case], None], ...] = (
    check_repeatable,
    check_hidden_labels,
    check_order_of_clients,
    check_bytes,
    check_blocks,
    check_lifting,
)


def same(case: Case, other: Outcome, broken: str) -> None:
    """Bit by bit."""
    found = difference(case.outcome.tree, other.tree)
    assert found is None, f"{broken} ({found})"


def close(case: Case, other: Outcome, broken: str) -> None:
    found = difference(case.outcome.tree, other.tree, ROUNDING)
    assert found is None, f"{broken} ({found})"


def _lacks_statistics(predictor: Predictor) -> bool:
    models = predictor.models if isinstance(predictor, Mixture) else (predictor,)
    return any(model.needs_statistics and not model.statistics for model in models)


def _name(training: Train) -> str:
    function = training.step or training.loss
    return getattr(function, "__name__", repr(function))


def _captured(function: Any) -> Iterator[Any]:
    """What a function brings along beside its arguments; a bound method's object is the method,
    which is checked.
    """
    if isinstance(function, functools.partial):
        yield from (*function.args, *function.keywords.values())
        yield from _captured(function.func)
        return
    function = getattr(function, "__func__", function)
    inside = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    for value in (*inside, *(getattr(function, "__defaults__", None) or ())):
        yield from _captured(value) if callable(value) else (value,)
