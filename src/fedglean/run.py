"""The round loop: serve the hub, admit and aggregate, evaluate, checkpoint."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedglean.aggregate import Reply
from fedglean.config import Config
from fedglean.engines.here import Kept
from fedglean.engines.loop import Party, converse
from fedglean.experiment import Experiment, prepare
from fedglean.folder import Progress, RunFolder
from fedglean.method import Ask, Talk
from fedglean.randomness import fold_int
from fedglean.result import Result
from fedglean.tree import Record

OnRound = Callable[[dict[str, Any]], None]


def run(config: Config, out: Path | None = None, on_round: OnRound | None = None) -> Result:
    """Train from the beginning. With `out`, every finished round is safe there and `resume` goes on from it."""
    experiment = prepare(config)
    progress = Progress(0, experiment.start(), Kept(), [])
    folder = RunFolder.create(out, experiment) if out is not None else None
    return play(experiment, progress, folder, on_round)


def resume(folder: Path, on_round: OnRound | None = None) -> Result:
    """Go on with a run that was interrupted; a finished one is returned as it is."""
    place = RunFolder(folder)
    experiment = prepare(place.config(), place.split())
    progress = place.load(experiment.device) or Progress(0, experiment.start(), Kept(), [])
    return play(experiment, progress, place, on_round)


def play(
    experiment: Experiment, progress: Progress, folder: RunFolder | None, on_round: OnRound | None = None
) -> Result:
    """All rounds that are still to be done, and what the method does after the last one."""
    with experiment.placement:
        for number in range(progress.done + 1, experiment.config.rounds + 2):
            line = play_round(experiment, progress, number)
            if line is None:
                break
            if folder is not None:
                folder.save(progress, experiment)
            if on_round is not None:
                on_round(line)
    predictors = dict(experiment.method.predictors(progress.state))
    if folder is not None:
        folder.finish(predictors, experiment, progress)
    return Result(
        experiment.config, progress.history, predictors, experiment.dataset.classes, folder.path if folder else None
    )


def play_round(experiment: Experiment, progress: Progress, number: int) -> dict[str, Any] | None:
    """One round, or what comes after the last one (None where nothing does); the line of metrics.jsonl it makes."""
    began = time.perf_counter()
    rounds = experiment.config.rounds
    final = number > rounds
    hub = experiment.hub(min(number, rounds))
    talk = experiment.method.finish(hub, progress.state) if final else experiment.method.round(hub, progress.state)
    if talk is None:
        return None
    served = Exchanges(experiment, progress.kept, number)
    progress.state = served.converse(talk)
    progress.done = number
    line = {"round": min(number, rounds), "final": final, **served.line(), "pseudo": experiment.evaluator.pseudo()}
    if final or number % experiment.config.engine.evaluate_every == 0 or number == rounds:
        line |= experiment.evaluator.test(experiment.method.predictors(progress.state))
    line["seconds"] = round(time.perf_counter() - began, 4)
    progress.history.append(line)
    return line


@dataclass
class Exchanges:
    """The hub's side of one round: its own requests go to the executor, an `Ask` goes to the clients."""

    experiment: Experiment
    kept: Kept
    number: int
    replies: list[Reply] = field(default_factory=list)
    trained: list[Reply] = field(default_factory=list)
    sent: int = 0

    def converse(self, talk: Talk) -> Record:
        key = self.experiment.key("round", self.number)
        state: Record = converse(Party(f"round {self.number}, hub", talk, key), self._answer)
        return state

    def _answer(self, request: Any, number: int) -> Any:
        key = self.experiment.key("round", self.number, number)
        placement = self.experiment.placement
        if isinstance(request, Ask):
            reply, sent = placement.exchange(request, self.number, number, fold_int(key, "ask"), self.kept)
            self.replies.append(reply)
            if request.purpose == "train":
                self.trained.append(reply)
            self.sent += sent
            return reply
        return placement.executor.serve(request, fold_int(key, "hub"))

    def line(self) -> dict[str, Any]:
        refused = [refusal for reply in self.replies for refusal in reply.refused]
        report: dict[str, float] = {}
        for reply in self.replies:
            report |= reply.report
        return {
            "report": report,
            "answered": len({client for reply in self.trained for client in reply.answered}),
            "abstained": len({client for reply in self.trained for client in reply.abstained}),
            "refused": [{"client": refusal.client, "reason": refusal.reason} for refusal in refused],
            "bytes_down": self.sent,
            "bytes_up": sum(reply.received for reply in self.replies),
        }
