"""The check of a model: `check_model` trains it on the small federation in all the ways that must
not matter.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal
from unittest import SkipTest

import torch

from fedglean.errors import FedgleanError
from fedglean.export import Check as Comparison
from fedglean.export import check as compared
from fedglean.export import save_onnx, save_state_dict
from fedglean.methods.semifl import SemiFL
from fedglean.models import Model
from fedglean.models.nets import NetKind
from fedglean.models.weights import digest_of_tensors
from fedglean.runs.trained import TrainedModel
from fedglean.testing import checks
from fedglean.testing.checks import Check
from fedglean.testing.conformance import CheckResult, results_of
from fedglean.testing.play import play
from fedglean.testing.random_generators import untouched_generators
from fedglean.testing.trial import Trial

#: It trains at the hub and at the clients, predicts, mixes images and asks for statistics.
METHOD = SemiFL(threshold=0.0, active=1.0, epochs=1)
SEED = 7


def check_initial_weights(trial: Trial) -> None:
    """A model's first weights repeat from the seed alone, and touch no global generator."""
    architecture = _model(trial).architecture
    models = []
    for position in (1, 2):
        with untouched_generators(position):
            models.append(architecture.initial(SEED))
    first, second = [{**model.parameters, **model.statistics} for model in models]
    for name, value in first.items():
        assert bool(torch.isfinite(value).all()), f"{name} begins with numbers that are not finite"
        assert torch.equal(value, second[name]), (
            f"{name} begins with other numbers each time; build draws it from a generator other "
            "than torch's, or the module keeps something"
        )


def check_module_unchanged(trial: Trial) -> None:
    """Training writes nothing into the module: what is frozen stays as it is, to the bit."""
    architecture = _model(trial).architecture
    module = architecture.kind.module
    if module is None:
        raise SkipTest("the model is no torch module")
    own = module.template(architecture.classes).own
    before = digest_of_tensors({name: value.detach() for name, value in own.items()})
    play(trial.experiment)
    after = digest_of_tensors({name: value.detach() for name, value in own.items()})
    assert before == after, (
        "training writes into the module's own tensors; a forward must not change parameters or "
        "buffers"
    )


def check_exports(trial: Trial) -> None:
    """The trained model can be exported, and answers as before."""
    experiment = trial.experiment
    dataset = experiment.dataset
    predictors = dict(experiment.method.predictors(trial.reference.final.state))
    trained = TrainedModel(predictors, dataset.classes, dataset.mean, dataset.std)
    has_onnx = all(find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime"))
    with TemporaryDirectory() as folder:
        for save in (save_state_dict, save_onnx) if has_onnx else (save_state_dict,):
            try:
                answer = save(trained, Path(folder) / save.__name__)
            except FedgleanError:
                raise
            except Exception as error:
                raise AssertionError(f"{save.__name__} cannot export the model: {error}") from error
            found: Comparison = compared(answer, trained, dataset.test_images[:50])
            assert found.passed, (
                f"{save.__name__}: probabilities differ by {found.difference:.0e} from the model's"
            )


MODEL_CHECKS: tuple[Check, ...] = (
    check_initial_weights,
    checks.check_small_federation,
    checks.check_participation,
    checks.check_predictors,
    checks.check_repeatable,
    checks.check_order_of_clients,
    checks.check_resume,
    checks.check_blocks,
    checks.check_lifting,
    checks.check_recorded_steps,
    checks.check_mixed_run,
    checks.check_stacked,
    checks.check_workers,
    checks.check_branches,
    check_module_unchanged,
    check_exports,
)


def check_model(
    model: NetKind,
    *,
    shape: tuple[int, int, int] = (1, 8, 8),
    norm: str = "static",
    rounds: int = 2,
    expected_failures: Mapping[str, str] | None = None,
    on_fail: Literal["raise", "collect"] = "raise",
) -> list[CheckResult]:
    """Check a model, such as one of `from_module`: raise an `AssertionError` at the first thing
    that is wrong with it, or collect what every check comes to.

    It is trained by SemiFL on ten classes of handwritten digits of that shape, in float64: one by
    one and stacked, by workers and branches, resumed after every round. `expected_failures` has a
    reason for each check that may fail.
    """
    trial = Trial(METHOD, norm=norm, rounds=rounds, kind=model, shape=shape)
    return results_of(MODEL_CHECKS, trial, expected_failures, on_fail)


def _model(trial: Trial) -> Model:
    model: Model = trial.experiment.start().model
    return model
