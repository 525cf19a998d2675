"""The checks of the contract; each says in a sentence which rule is broken and where to look."""

import functools
import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import SkipTest

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedglean import tree
from fedglean.engine.signature import identity_of
from fedglean.engine.stack import Stack
from fedglean.engine.workers import Workers
from fedglean.inputs.images import Images
from fedglean.method import Apply, Mixture, Predict, Statistics, Train
from fedglean.runs.evaluate import logits
from fedglean.schema import fields_of
from fedglean.testing.branches import play_at_branches
from fedglean.testing.difference import difference
from fedglean.testing.engines import AsBytes, Backwards, TwoLanes, variant
from fedglean.testing.faults import drop, not_a_number, poison
from fedglean.testing.play import play, restarted
from fedglean.testing.random_generators import untouched_generators
from fedglean.testing.small_federation import (
    with_false_labels,
    with_false_test_set,
    with_own_stores,
)
from fedglean.testing.trial import ROUNDING, Trial, close, compare, same

Check = Callable[[Trial], None]


def check_settings(trial: Trial) -> None:
    """A method is a frozen dataclass whose fields are numbers, text, true or false."""
    kind = type(trial.method)
    parameters = vars(kind).get("__dataclass_params__")
    frozen = parameters is not None and parameters.frozen
    assert frozen, (
        f"{kind.__name__} is not a frozen dataclass; put @dataclass(frozen=True) above it"
    )
    for name in fields_of(kind):
        value = getattr(trial.method, name)
        plain = value is None or isinstance(value, bool | int | float | str)
        assert plain, (
            f"setting '{name}' is a {type(value).__name__}; settings must be numbers, text, true "
            "or false"
        )


def check_small_federation(trial: Trial) -> None:
    """It runs, draws from no global generator, and writes into nothing that it was lent."""
    if isinstance(trial.first_run, AssertionError):
        raise trial.first_run


def check_participation(trial: Trial) -> None:
    """Clients train and send something, and the gate admits it."""
    reference = trial.reference
    lines = reference.final.history
    refused = reference.final.refused
    assert not refused, f"the gate refused an honest upload: {refused[0]['reason']}"
    answered = sum(line["answered"] for line in lines)
    if not answered + sum(line["abstained"] for line in lines):
        return
    assert answered or not reference.trainings, (
        "clients are trained but send nothing; does the function return an Upload?"
    )
    assert answered, (
        "every client abstained in every round; choose settings with which some of them train"
    )
    assert reference.trainings, (
        "no client was ever trained; choose settings with which some of them are"
    )


def check_upload_dtypes(trial: Trial) -> None:
    """Uploads are floats: integers and truth values have no mean."""
    for envelope in trial.reference.uploads:
        for name, sent in envelope.upload.trees.items():
            for path, leaf in tree.named(sent).items():
                assert leaf.is_floating_point(), (
                    f"client {envelope.client} uploads '{name}' with {path} of {leaf.dtype}; only "
                    "floats can be averaged"
                )


def check_closures(trial: Trial) -> None:
    """No tensor is in a closure: there it is the same for all clients, whoever it belongs to."""
    for training in trial.reference.trainings:
        for leaf in pytree.tree_leaves(list(_captured(training.step or training.loss))):
            assert not isinstance(leaf, Tensor | Images), (
                f"{_name(training)} captures a {type(leaf).__name__} in a closure; what differs "
                "between clients goes into frozen, memory or a stream's labels"
            )


def check_functions_made_once(trial: Trial) -> None:
    """Losses and steps are defined once: what is made anew is neither stacked nor recorded."""
    seen: dict[Any, Any] = {}
    for training in trial.reference.trainings:
        function = identity_of(training.step or training.loss)
        code = getattr(function, "__code__", None) or getattr(function, "func", function)
        assert seen.setdefault(code, function) == function, (
            f"{_name(training)} is made anew for each training, so no two of them can be stacked; "
            "define it once, as a method or beside the class, and give it what differs in frozen"
        )


def check_test_images(trial: Trial) -> None:
    """No request is given an image of the test set, however it was come by."""
    test = {image.numpy().tobytes() for image in trial.experiment.dataset.test_images}
    for request in trial.reference.requests:
        for images in _images(request):
            for image in images.store[images.index]:
                assert image.numpy().tobytes() not in test, (
                    f"a {type(request).__name__} is given an image of the test set, by which the "
                    "result is measured"
                )


def check_predictors(trial: Trial) -> None:
    """Predictors give a finite number a class, and need no other images of the batch."""
    experiment = trial.experiment
    predictors = experiment.method.predictors(trial.reference.final.state)
    assert predictors, "predictors(state) names nothing; the first one is the result of a run"
    images = experiment.dataset.test_images[:50]
    for name, predictor in predictors.items():
        output = logits(predictor, images, experiment.executor.setting)
        models = predictor.models if isinstance(predictor, Mixture) else (predictor,)
        assert all(model.statistics or not model.needs_statistics for model in models), (
            f"predictor '{name}' has no batch-norm statistics, so its answers depend on what else "
            "is in a batch; fedglean.methods.common.with_statistics adds them"
        )
        assert output.shape == (50, 10), (
            f"predictor '{name}' gives {tuple(output.shape)} for 50 images of 10 classes"
        )
        assert bool(torch.isfinite(output).all()), (
            f"predictor '{name}' gives logits that are not finite"
        )


def check_repeatable(trial: Trial) -> None:
    """A second run changes nothing."""
    broken = (
        "a second run gives a different result: something outside state and keep is remembered or "
        "drawn"
    )
    with untouched_generators(2):
        same(trial, variant(trial.experiment), broken)


def check_hidden_labels(trial: Trial) -> None:
    """False hidden labels, and images elsewhere in the store, change nothing."""
    broken = (
        "hidden labels, or where an image lies in the store, change the result: a client knows "
        "me.labelled.label and no other label"
    )
    same(trial, with_false_labels(trial.experiment), broken)


def check_test_set(trial: Trial) -> None:
    """Other test images and test labels change nothing."""
    broken = "the test set changes the trained model: nothing but the evaluator may look at it"
    same(trial, with_false_test_set(trial.experiment), broken)


def check_own_images(trial: Trial) -> None:
    """A store for each party, of its own images alone, changes nothing."""
    broken = (
        "images of others change a client's result: of me.labelled.store and me.unlabelled.store "
        "only the images at its own index are a client's, and in a federation it has no others"
    )
    same(trial, with_own_stores(trial.experiment), broken)


def check_order_of_clients(trial: Trial) -> None:
    """Serving clients from the last to the first changes nothing."""
    broken = "the order in which clients are served changes the result: they share something"
    same(trial, variant(trial.experiment, Backwards), broken)


def check_resume(trial: Trial) -> None:
    """Resuming after every round, and messages and uploads as bytes, change nothing."""
    broken = (
        "a run that is resumed from stored state gives a different result: something is kept "
        "elsewhere"
    )
    restart = functools.partial(restarted, trial.experiment)
    same(trial, variant(trial.experiment, placement=AsBytes), broken, between=restart)


def check_blocks(trial: Trial) -> None:
    """Blocks of three clients change no more than rounding."""
    broken = "the cut into blocks changes the result by more than rounding"
    close(trial, variant(trial.experiment, block=3), broken)


def check_lifting(trial: Trial) -> None:
    """Steps under torch.func.vmap, beside another client, change no more than rounding."""
    broken = "a training step cannot be lifted by torch.func.vmap, so clients cannot be stacked"
    close(trial, variant(trial.experiment, TwoLanes), broken)


def check_recorded_steps(trial: Trial) -> None:
    """Steps recorded as tensor operations, and repeated from then on, change nothing."""
    broken = (
        "a recorded step gives a different result: it reads something that changes in Python; put "
        "it into frozen as a tensor"
    )
    same(trial, variant(trial.experiment, record_after=2), broken)


def check_mixed_run(trial: Trial) -> None:
    """All of these at once change nothing, where none alone is to blame."""
    if trial.mixed_run is not None:
        raise trial.mixed_run


def check_stacked(trial: Trial) -> None:
    """Clients in blocks of four, each one tensor program, change no more than rounding."""
    broken = "clients stacked into one tensor program give another result than one by one"
    close(trial, variant(trial.experiment, Stack, record_after=2, block=4), broken)


def check_workers(trial: Trial) -> None:
    """Worker processes change no more than rounding."""
    if "fork" not in multiprocessing.get_all_start_methods():
        raise SkipTest("this system does not fork processes")
    broken = "clients served by worker processes give another result than clients served here"
    workers = functools.partial(Workers, block=4, workers=2)
    experiment = variant(trial.experiment, Stack, workers, block=4)
    with experiment.placement:
        close(trial, experiment, broken)


def check_branches(trial: Trial) -> None:
    """Branches of a federation, in this process, change no more than rounding."""
    broken = "a federation of branches gives another result than a simulation"
    with TemporaryDirectory() as name:
        run = functools.partial(play_at_branches, trial.experiment, Path(name))
        compare(trial, run, broken, ROUNDING)


def check_refused_upload(trial: Trial) -> None:
    """A poisoned upload is as good as one never sent, its client's state included."""
    reference = trial.reference
    clients = [envelope.client for envelope in reference.uploads if envelope.round == 2]
    if not clients:
        return
    hit = 2, max(clients)
    finals = []
    for fault in (drop(hit), poison(not_a_number, hit)):
        struck = variant(trial.experiment, deliver=fault)
        finals.append(play(struck, begin=restarted(struck, reference.first)))
    without, poisoned = finals
    assert poisoned.refused, f"a NaN in the upload of client {hit[1]} was not refused"
    found = difference(without.tree, poisoned.tree)
    assert found is None, f"a refused upload leaves a trace, as one never sent would not: {found}"


#: What is tried in one mixed run, and alone only to find out what it was that mattered there.
ONE_BY_ONE: tuple[Check, ...] = (
    check_repeatable,
    check_hidden_labels,
    check_test_set,
    check_own_images,
    check_order_of_clients,
    check_resume,
    check_blocks,
    check_lifting,
    check_recorded_steps,
    check_mixed_run,
)
CHECKS: tuple[Check, ...] = (
    check_settings,
    check_small_federation,
    check_participation,
    check_upload_dtypes,
    check_closures,
    check_functions_made_once,
    check_test_images,
    check_predictors,
    *ONE_BY_ONE,
    check_stacked,
    check_workers,
    check_branches,
    check_refused_upload,
)


def _images(request: Any) -> list[Images]:
    if isinstance(request, Train):
        return [stream.images for stream in request.streams.values()]
    return [request.images] if isinstance(request, Predict | Apply | Statistics) else []


def _name(training: Train) -> str:
    function = training.step or training.loss
    return getattr(function, "__name__", repr(function))


def _captured(function: Any) -> Iterator[Any]:
    """What a function brings along beside its arguments, but for the method, which is checked."""
    if isinstance(function, functools.partial):
        yield from (*function.args, *function.keywords.values())
        yield from _captured(function.func)
        return
    function = getattr(function, "__func__", function)
    inside = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    for value in (*inside, *(getattr(function, "__defaults__", None) or ())):
        yield from _captured(value) if callable(value) else (value,)
