"""The round loop: serve the hub, evaluate, checkpoint; several seeds side by side."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from fedglean.engine.placement import exchange_together
from fedglean.engine.task import Party, PartyError, Task, run_together
from fedglean.errors import plain
from fedglean.exchange.exchange import Exchange
from fedglean.exchange.states import ClientStates
from fedglean.method import Ask, Report
from fedglean.randomness import fold_int
from fedglean.runs.evaluate import Predictor
from fedglean.runs.experiment import Experiment
from fedglean.runs.folder import Progress, RunFolder
from fedglean.runs.run import Run
from fedglean.runs.trained import TrainedModel
from fedglean.sealed import write_whole
from fedglean.tree import Record, State, restore
from fedglean.uploads import Reply, Reports, add_reports, mean_reports

OnRounds = Callable[[list[dict[str, Any]]], None]


@dataclass
class LiveRun:
    """An experiment in progress."""

    experiment: Experiment
    progress: Progress
    folder: RunFolder | None = None

    @classmethod
    def new(cls, experiment: Experiment, out: Path | None) -> "LiveRun":
        run = cls(experiment, Progress(0, experiment.start(), ClientStates(), []))
        if out is not None:
            run.folder = RunFolder.create(out, experiment.config, experiment.split)
        return run

    @classmethod
    def found(cls, experiment: Experiment, folder: RunFolder) -> "LiveRun":
        """As far as the folder says that it has come."""
        start = experiment.start()
        progress = folder.load(experiment.device) or Progress(0, start, ClientStates(), [])
        progress.state = restore(progress.state, start)
        return cls(experiment, progress, folder)

    @property
    def finished(self) -> bool:
        """Whether a run before this one has come to the end."""
        return self.folder is not None and self.folder.model_path.exists()

    def predictors(self) -> dict[str, Predictor]:
        """The method's, as they are now."""
        found: object = self.experiment.method.predictors(self.progress.state)
        if not isinstance(found, Mapping) or not found:
            gave = "no model" if isinstance(found, Mapping) else f"a {type(found).__name__}"
            wanted = "a dictionary of models by name, the result first"
            raise PartyError(f"predictors(state) gave {gave}; it must give {wanted}")
        return dict(found)

    def result(self) -> Run:
        """What it came to; its folder gets the final model."""
        experiment, progress, dataset = self.experiment, self.progress, self.experiment.dataset
        model = TrainedModel(self.predictors(), dataset.classes, dataset.mean, dataset.std)
        path = None
        if self.folder is not None:
            path = self.folder.path
            if not self.finished:
                self.folder.finish(model, experiment.config, progress.done)
        return Run(experiment.config, progress.history, path, experiment.split, model)


def play(runs: Sequence[LiveRun], on_rounds: OnRounds, group: Path | None = None) -> list[Run]:
    """Play all rounds that are left, and what the method does after the last one.

    The rounds of several runs are played together and saved at one moment, which `group` marks.
    """
    first = min(run.progress.done for run in runs) + 1
    after_last = runs[0].experiment.config.rounds + 1  # `Method.finish`
    with ExitStack() as stack:
        for run in runs:
            if not run.finished:
                stack.enter_context(run.experiment.placement)
            if run.folder is not None:
                stack.callback(run.folder.release)
        for number in range(first, after_last + 1):
            behind = [run for run in runs if run.progress.done < number]
            lines = play_rounds(behind, number)
            if not lines:
                break
            commit(behind, number, group)
            on_rounds(lines)
        return [run.result() for run in runs]


def commit(runs: Sequence[LiveRun], number: int, group: Path | None = None) -> None:
    """Make a round that was just played the state of all runs that have a folder, or of none.

    Of several runs, `group` is the file whose writing decides: what was staged counts from then on,
    moved or not.
    """
    began = time.perf_counter()
    due = []
    for run in runs:
        if run.folder is not None and run.folder.stage(run.progress, run.experiment.config):
            due.append(run.folder)
    if due and group is not None:
        write_whole(group, json.dumps({"done": number}).encode())
    for folder in due:
        folder.checkpoints.commit()
    for run in runs:
        run.progress.writing = (time.perf_counter() - began) / len(runs)


def play_round(experiment: Experiment, progress: Progress, number: int) -> dict[str, Any] | None:
    """Play one round of one run; return its line, or None if nothing is left."""
    lines = play_rounds([LiveRun(experiment, progress)], number)
    return lines[0] if lines else None


def play_rounds(runs: Sequence[LiveRun], number: int) -> list[dict[str, Any]]:
    """Play one round, or what follows the last one, of runs that share an executor.

    Returns their lines of metrics.jsonl, none if nothing is left to do.
    """
    began = time.perf_counter()
    hubs: dict[Party, HubSide] = {}
    for run in runs:
        executor, history = run.experiment.executor, run.progress.history
        if executor.widest is None and history:
            # A run that memory was too small for before goes on as narrow as it became.
            executor.widest = history[-1].get("widest")
        hubs[hub_party(run, number)] = HubSide(run, number)

    def answer(waiting: Sequence[Task]) -> list[Any]:
        return _answers([(hubs[task.party], task) for task in waiting])

    states = run_together(list(hubs), answer)
    if number > runs[0].experiment.config.rounds and all(state is None for state in states):
        return []
    phases = _phases(list(hubs.values()), (time.perf_counter() - began) / len(runs))
    lines = []
    for side, state in zip(hubs.values(), states, strict=True):
        if not isinstance(state, Record | State):
            told = f"round {number}, hub: the method returned a {type(state).__name__}"
            wanted = "the state for the next round must be of the kind that `start` makes"
            raise PartyError(f"{told}; {wanted}")
        progress = side.run.progress
        progress.state, progress.done = state, number
        lines.append(_line(side, phases))
        progress.history.append(lines[-1])
    return lines


def hub_party(run: LiveRun, number: int) -> Party:
    """The hub's side of a round; beyond the last one what the method still does, if anything."""
    experiment, method = run.experiment, run.experiment.method
    rounds = experiment.config.rounds
    hub = experiment.hub(min(number, rounds))
    work = method.finish if number > rounds else method.round
    key = experiment.key("round", number)
    return Party(f"round {number}, hub", work(hub, run.progress.state), key, purpose=("hub",))


def _phases(hubs: Sequence["HubSide"], seconds: float) -> dict[str, float]:
    """Where each run's share of a round's seconds went.

    `averaging` is what the method does between its requests. Nothing waits for a GPU here: work
    that one phase leaves it with is counted where it is waited for.
    """
    hub = fmean(side.hub_seconds for side in hubs)
    clients = fmean(side.client_seconds for side in hubs)
    return {"hub": hub, "clients": clients, "averaging": seconds - hub - clients}


def _line(side: "HubSide", phases: Mapping[str, float]) -> dict[str, Any]:
    """What is told of a round.

    Its seconds are its share of the time that several runs took together. What it takes to make it
    safe is known once the line is written, and stands as `write` in the next one.
    """
    began = time.perf_counter()
    experiment, progress = side.run.experiment, side.run.progress
    rounds, number = experiment.config.rounds, side.number
    line: dict[str, Any] = {"round": min(number, rounds), "final": number > rounds, **side.line()}
    line["pseudo"] = experiment.evaluator.pseudo()
    if number >= rounds or number % experiment.config.engine.evaluate_every == 0:
        line |= experiment.evaluator.test(side.run.predictors())
    if experiment.executor.widest is not None:
        line["widest"] = experiment.executor.widest
    spent = {**phases, "test": time.perf_counter() - began}
    line["seconds"] = round(sum(spent.values()), 4)
    spent["write"] = progress.writing
    line["phases"] = {name: round(part, 4) for name, part in spent.items()}
    return line


@dataclass
class HubSide:
    """The hub's side of one round: what it asked of the clients, and what came of it."""

    run: LiveRun
    number: int
    replies: list[Reply] = field(default_factory=list)
    trained: list[Reply] = field(default_factory=list)
    sent: int = 0
    hub_seconds: float = 0.0
    client_seconds: float = 0.0
    reported: dict[str, float] = field(default_factory=dict)

    def note(self, ask: Ask, reply: Reply, sent: int) -> Reply:
        self.replies.append(reply)
        if ask.purpose == "train":
            self.trained.append(reply)
        self.sent += sent
        return reply

    def line(self) -> dict[str, Any]:
        refused: list[dict[str, Any]] = []
        reports: Reports = {}
        for reply in self.replies:
            add_reports(reports, reply.reports)
            for refusal in reply.refused:
                refused.append({"client": refusal.client, "reason": plain(refusal.reason)})
        answered: set[int] = set()
        abstained: set[int] = set()
        for reply in self.trained:
            answered.update(reply.answered)
            abstained.update(reply.abstained)
        return {
            "report": mean_reports(reports) | self.reported,
            "answered": len(answered),
            "abstained": len(abstained),
            "refused": refused,
            "bytes_down": self.sent,
            "bytes_up": sum(reply.received for reply in self.replies),
        }


def _answers(waiting: Sequence[tuple[HubSide, Task]]) -> list[Any]:
    """The hubs' own requests go to the executor, their asks to the clients."""
    asks, own = [], []
    answers: dict[Party, Any] = {}
    for side, task in waiting:
        if isinstance(task.request, Ask):
            asks.append((side, task))
        elif isinstance(task.request, Report):
            side.reported |= task.request.numbers
            answers[task.party] = None
        else:
            own.append(task)
    began = time.perf_counter()
    with waiting[0][1].blamed():
        for (side, task), (reply, sent) in zip(asks, _exchange(asks), strict=True):
            answers[task.party] = side.note(task.request, reply, sent)
        asked = time.perf_counter()
        if own:
            executor = waiting[0][0].run.experiment.executor
            replies = executor.answer([task.call for task in own])
            answers |= {task.party: reply for task, reply in zip(own, replies, strict=True)}
    done = time.perf_counter()
    for side, _ in waiting:
        side.client_seconds += (asked - began) / len(waiting)
        side.hub_seconds += (done - asked) / len(waiting)
    return [answers[task.party] for _, task in waiting]


def _exchange(asks: Sequence[tuple[HubSide, Task]]) -> list[tuple[Reply, int]]:
    asked = []
    for side, task in asks:
        key = fold_int(task.party.key, task.number, "ask")
        exchange = Exchange(task.request, side.number, task.number, key)
        asked.append((side.run.experiment.exchanger, exchange, side.run.progress.kept))
    if len(asked) > 1:
        return exchange_together(asked)
    return [exchanger.exchange(exchange, kept) for exchanger, exchange, kept in asked]
