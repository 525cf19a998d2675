"""The round loop: serve the hub, admit and aggregate, evaluate, checkpoint. Several seeds run side
by side.
"""

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
from fedglean.runs.config import Config
from fedglean.runs.evaluate import Predictor
from fedglean.runs.experiment import Experiment, prepare, settled_for
from fedglean.runs.folder import Progress, RunFolder, commit
from fedglean.runs.run import Run
from fedglean.runs.trained import TrainedModel
from fedglean.tree import Record, State, restored
from fedglean.uploads import Reply, Reports, add_reports, mean_reports

OnRound = Callable[[dict[str, Any]], None]
OnRounds = Callable[[list[dict[str, Any]]], None]


@dataclass
class LiveRun:
    """An experiment in progress."""

    experiment: Experiment
    progress: Progress
    folder: RunFolder | None = None

    @classmethod
    def new(cls, experiment: Experiment, out: Path | None) -> "LiveRun":
        progress = Progress(0, experiment.start(), ClientStates(), [])
        return cls(
            experiment, progress, RunFolder.create(out, experiment) if out is not None else None
        )

    @classmethod
    def found(cls, experiment: Experiment, folder: RunFolder) -> "LiveRun":
        """As far as the folder says that it has come."""
        start = experiment.start()
        progress = folder.load(experiment.device) or Progress(0, start, ClientStates(), [])
        progress.state = restored(progress.state, start)
        return cls(experiment, progress, folder)

    @property
    def finished(self) -> bool:
        """Whether a run before this one has come to the end."""
        return self.folder is not None and self.folder.model_path.exists()

    def result(self) -> Run:
        """The result of a run that is finished."""
        experiment, progress, folder = self.experiment, self.progress, self.folder
        dataset = experiment.dataset
        predictors = tested(experiment, progress)
        model = TrainedModel(predictors, dataset.classes, dataset.mean, dataset.std)
        if folder is not None and not self.finished:
            folder.finish(model, experiment.config, progress.done)
        path = folder.path if folder else None
        return Run(experiment.config, progress.history, path, experiment.split, model)


def run(config: Config, out: Path | None = None, on_round: OnRound | None = None) -> Run:
    """Train from the beginning. With `out`, every finished round is saved there, and `resume`
    continues from it.
    """
    with settled_for(config):
        return play([LiveRun.new(prepare(config), out)], _of_one(on_round))[0]


def resume(folder: Path, on_round: OnRound | None = None) -> Run:
    """Continue a run that was interrupted; a finished one is returned as it is."""
    place = RunFolder(folder)
    config = place.config()
    with settled_for(config):
        found = LiveRun.found(prepare(config, place.split()), place)
        return play([found], _of_one(on_round))[0]


def _of_one(on_round: OnRound | None) -> OnRounds:
    return lambda lines: on_round(lines[0]) if on_round is not None else None


def play(runs: Sequence[LiveRun], on_rounds: OnRounds, group: Path | None = None) -> list[Run]:
    """Play all rounds that are left, and what the method does after the last one.

    The rounds of several runs are played together and saved at one moment, which `group` marks.
    """
    rounds = runs[0].experiment.config.rounds
    with ExitStack() as stack:
        for each in runs:
            if not each.finished:
                stack.enter_context(each.experiment.placement)
            if each.folder is not None:
                stack.callback(each.folder.release)
        for number in range(
            min(each.progress.done for each in runs) + 1, rounds + 2
        ):  # one more: `Method.finish`
            behind = [each for each in runs if each.progress.done < number]
            lines = play_rounds([(each.experiment, each.progress) for each in behind], number)
            if not lines:
                break
            commit(
                [(each.folder, each.progress, each.experiment) for each in behind if each.folder],
                number,
                group,
            )
            on_rounds(lines)
        return [each.result() for each in runs]


def play_round(experiment: Experiment, progress: Progress, number: int) -> dict[str, Any] | None:
    """Play one round, or what follows the last one; return its line of metrics.jsonl, or None if
    nothing is left.
    """
    lines = play_rounds([(experiment, progress)], number)
    return lines[0] if lines else None


def play_rounds(runs: Sequence[tuple[Experiment, Progress]], number: int) -> list[dict[str, Any]]:
    """`play_round` for several runs that share an executor; no lines if nothing is left to do."""
    began = time.perf_counter()
    hubs: dict[Party, HubSide] = {}
    for experiment, progress in runs:
        # A run that memory was too small for before goes on as narrow as it became.
        executor = experiment.executor
        executor.widest = executor.widest or (
            progress.history[-1].get("widest") if progress.history else None
        )
        party = hub_party(experiment, progress, number)
        hubs[party] = HubSide(experiment, progress.kept, number)
    states = run_together(
        list(hubs), lambda waiting: _answers([(hubs[task.party], task) for task in waiting])
    )
    if number > runs[0][0].config.rounds and all(state is None for state in states):
        return []
    phases = _phases(list(hubs.values()), (time.perf_counter() - began) / len(runs))
    lines = []
    for (experiment, progress), side, state in zip(runs, hubs.values(), states, strict=True):
        if not isinstance(state, Record | State):
            told = f"round {number}, hub: the method returned a {type(state).__name__}"
            raise PartyError(
                f"{told}; the state for the next round must be of the kind that `start` makes"
            )
        progress.state, progress.done = state, number
        progress.history.append(_line(experiment, progress, side, phases))
        lines.append(progress.history[-1])
    return lines


def hub_party(experiment: Experiment, progress: Progress, number: int) -> Party:
    """The hub's side of a round; beyond the last one what the method still does, if anything."""
    rounds, method = experiment.config.rounds, experiment.method
    hub = experiment.hub(min(number, rounds))
    work = method.finish if number > rounds else method.round
    key = experiment.key("round", number)
    return Party(f"round {number}, hub", work(hub, progress.state), key, purpose=("hub",))


def _phases(hubs: Sequence["HubSide"], seconds: float) -> dict[str, float]:
    """Where each run's share of a round's seconds went; `averaging` is what the method does between
    its requests.

    Nothing waits for a GPU here: work that one phase leaves it with is counted where it is waited
    for.
    """
    hub, clients = (
        fmean(side.hub_seconds for side in hubs),
        fmean(side.client_seconds for side in hubs),
    )
    return {"hub": hub, "clients": clients, "averaging": seconds - hub - clients}


def tested(experiment: Experiment, progress: Progress) -> dict[str, Predictor]:
    """The method's predictors after a round."""
    found: object = experiment.method.predictors(progress.state)
    if not isinstance(found, Mapping) or not found:
        gave = "no model" if isinstance(found, Mapping) else f"a {type(found).__name__}"
        raise PartyError(
            f"predictors(state) gave {gave}; it must give a dictionary of models by name, the "
            "result first"
        )
    return dict(found)


def _line(
    experiment: Experiment, progress: Progress, side: "HubSide", phases: Mapping[str, float]
) -> dict[str, Any]:
    """What is told of a round. Its seconds are its share of the time that several runs took
    together, without what it took to make it safe: that is known once the line is written, and
    stands as `write` in the next one.
    """
    began, number, config = time.perf_counter(), progress.done, experiment.config
    final = number > config.rounds
    pseudo = experiment.evaluator.pseudo()
    line = {"round": min(number, config.rounds), "final": final, **side.line(), "pseudo": pseudo}
    if final or number % config.engine.evaluate_every == 0 or number == config.rounds:
        line |= experiment.evaluator.test(tested(experiment, progress))
    if experiment.executor.widest is not None:
        line["widest"] = experiment.executor.widest
    spent = {**phases, "test": time.perf_counter() - began}
    line["seconds"] = round(sum(spent.values()), 4)
    line["phases"] = {
        name: round(part, 4) for name, part in (spent | {"write": progress.writing}).items()
    }
    return line


@dataclass
class HubSide:
    """The hub's side of one round: what it asked of the clients, and what came of it."""

    experiment: Experiment
    kept: ClientStates
    number: int
    replies: list[Reply] = field(default_factory=list)
    trained: list[Reply] = field(default_factory=list)
    sent: int = 0
    hub_seconds: float = 0.0
    client_seconds: float = 0.0
    reported: dict[str, float] = field(default_factory=dict)

    def exchange(self, task: Task) -> Exchange:
        key = fold_int(task.party.key, task.number, "ask")
        return Exchange(task.request, self.number, task.number, key)

    def note(self, ask: Ask, reply: Reply, sent: int) -> Reply:
        self.replies.append(reply)
        if ask.purpose == "train":
            self.trained.append(reply)
        self.sent += sent
        return reply

    def line(self) -> dict[str, Any]:
        refused = [refusal for reply in self.replies for refusal in reply.refused]
        reports: Reports = {}
        for reply in self.replies:
            add_reports(reports, reply.reports)
        return {
            "report": mean_reports(reports) | self.reported,
            "answered": len({client for reply in self.trained for client in reply.answered}),
            "abstained": len({client for reply in self.trained for client in reply.abstained}),
            "refused": [
                {"client": refusal.client, "reason": plain(refusal.reason)} for refusal in refused
            ],
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
        for (side, task), (reply, sent) in zip(asks, _exchanged(asks), strict=True):
            answers[task.party] = side.note(task.request, reply, sent)
        asked = time.perf_counter()
        if own:
            executor = waiting[0][0].experiment.executor
            replies = executor.answer([task.call for task in own])
            answers |= {task.party: reply for task, reply in zip(own, replies, strict=True)}
    done = time.perf_counter()
    for side, _ in waiting:
        side.client_seconds += (asked - began) / len(waiting)
        side.hub_seconds += (done - asked) / len(waiting)
    return [answers[task.party] for _, task in waiting]


def _exchanged(asks: Sequence[tuple[HubSide, Task]]) -> list[tuple[Reply, int]]:
    asked = [(side.experiment.exchanger, side.exchange(task), side.kept) for side, task in asks]
    if len(asked) > 1:
        return exchange_together(asked)
    return [exchanger.exchange(exchange, kept) for exchanger, exchange, kept in asked]
