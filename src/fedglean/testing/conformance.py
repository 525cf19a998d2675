"""The check of the contract: a method on awkward clients, in all ways that must not matter.

A method that passes can be run by every executor and placement, killed, resumed and attacked.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal
from unittest import SkipTest

import torch

from fedglean.engine.device import settled
from fedglean.errors import unknown
from fedglean.method import Method
from fedglean.testing.checks import CHECKS, ONE_BY_ONE, Check
from fedglean.testing.trial import Trial

Outcome = Literal["passed", "failed", "failed as expected", "skipped"]


@dataclass(frozen=True)
class CheckResult:
    """What one check came to, and in a sentence why; `expected` is the reason why it was to fail.

    Some checks share runs: their seconds are those of the first of them.
    """

    check: str
    outcome: Outcome
    sentence: str
    seconds: float
    expected: str = ""


def check_method(
    method: Method,
    *,
    model: str = "cnn",
    norm: str = "static",
    rounds: int = 3,
    use: Path | str | None = None,
    expected_failures: Mapping[str, str] | None = None,
    on_fail: Literal["raise", "collect"] = "raise",
) -> list[CheckResult]:
    """Check a method: raise at the first broken rule, or collect what every check comes to.

    Choose settings with which clients train from the first round (a low threshold, all of them
    taking part), and few epochs: the method is run half a dozen times. `use` is the Python file of
    the model, if it is your own; `expected_failures` has a reason for each check that may fail.
    """
    return results_of(CHECKS, Trial(method, model, norm, rounds, use), expected_failures, on_fail)


def results_of(
    checks: Sequence[Check],
    trial: Trial,
    expected_failures: Mapping[str, str] | None,
    on_fail: Literal["raise", "collect"],
) -> list[CheckResult]:
    """What each of these checks comes to."""
    expected = _known(expected_failures, checks)
    results = []
    for check in checks:
        name = check.__name__
        outcome: Outcome = "passed"
        began, sentence = time.perf_counter(), ""
        try:
            run_check(check, trial)
        except SkipTest as reason:
            outcome, sentence = "skipped", str(reason)
        except AssertionError as error:
            if on_fail == "raise" and name not in expected:
                raise
            outcome = "failed as expected" if name in expected else "failed"
            sentence = str(error)
        seconds = time.perf_counter() - began
        results.append(CheckResult(name, outcome, sentence, seconds, expected.get(name, "")))
    return results


def parametrize_with_checks(
    methods: Sequence[Method], *, expected_failures: Mapping[str, str] | None = None, **options: Any
) -> Any:
    """A pytest decorator: a test for every method and check, such as `MyMethod-check_resume`.

    The test has one argument, `check`, and calls it. Options are those of `check_method`; an
    expected failure is marked as `xfail` with its reason.
    """
    import pytest

    expected = _known(expected_failures, CHECKS)
    cases = []
    for method in methods:
        trial = Trial(method, **options)
        for check in CHECKS:
            name = check.__name__
            marks = [pytest.mark.xfail(reason=expected[name])] if name in expected else []
            run = partial(run_check, check, trial)
            cases.append(pytest.param(run, id=f"{type(method).__name__}-{name}", marks=marks))
    return pytest.mark.parametrize("check", cases)


def run_check(check: Check, trial: Trial) -> None:
    """Where a mixed run passes, so does all that is in the mixture."""
    with settled(torch.device("cpu"), threads=1, deterministic=True):
        if check in ONE_BY_ONE and trial.mixed_run is None:
            return
        check(trial)


def _known(expected_failures: Mapping[str, str] | None, checks: Sequence[Check]) -> dict[str, str]:
    names = [check.__name__ for check in checks]
    for name in expected_failures or {}:
        if name not in names:
            raise unknown("check", name, names)
    return dict(expected_failures or {})
