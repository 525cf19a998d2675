"""Trackers that write for other programs.

What they get is what metrics.jsonl has, which stays the source. A resumed run is written again from
its first round. Packages are imported late and named in a sentence where they are missing. Nothing
is sent anywhere unless the user's own settings of a program say so.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from fedglean.errors import ConfigError
from fedglean.report.gather import gather
from fedglean.report.tracker import Lines, Tracker
from fedglean.runs.config import to_toml
from fedglean.runs.run import Line, Run, Runs, step_of
from fedglean.sealed import make_folder


class TensorBoard:
    """Event files, by default in tensorboard/ beside the runs; those of before are replaced."""

    def __init__(self, out: Path | None = None) -> None:
        self.writer = _module("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self.out = out
        self.writers: dict[int, Any] = {}

    def begin(self, runs: Runs) -> None:
        out = self.out or _folder_of(runs) / "tensorboard"
        for run in runs:
            place = out / f"seed-{run.seed}"
            make_folder(place)
            for old in place.glob("events.out.tfevents.*"):
                old.unlink()
            self.writers[run.seed] = self.writer(str(place))
        _replay(self, runs)

    def round(self, lines: Lines) -> None:
        for seed, line in lines.items():
            for name, value in scalars(line):
                self.writers[seed].add_scalar(name, value, step_of(line))
            self.writers[seed].flush()

    def end(self, runs: Runs) -> None:
        for writer in self.writers.values():
            writer.close()


class WandB:
    """Weights & Biases: a run a seed, in wandb/ beside the runs, from where `wandb sync` sends it.

    It is offline unless WANDB_MODE says otherwise.
    """

    def __init__(self) -> None:
        self.wandb = _module("wandb", "wandb")
        self.runs: dict[int, Any] = {}

    def begin(self, runs: Runs) -> None:
        place = _folder_of(runs)
        for run in runs:
            self.runs[run.seed] = self.wandb.init(
                project="fedglean",
                group=runs.name,
                name=f"{runs.name}, seed {run.seed}",
                config={"toml": to_toml(run.config), **_settings(run)},
                dir=str(place),
                mode=os.environ.get("WANDB_MODE", "offline"),
                reinit="create_new",
                settings=self.wandb.Settings(quiet=True),
            )
        _replay(self, runs)

    def round(self, lines: Lines) -> None:
        for seed, line in lines.items():
            self.runs[seed].log(dict(scalars(line)), step=step_of(line))

    def end(self, runs: Runs) -> None:
        for run in self.runs.values():
            run.finish(exit_code=0 if runs.finished else 1)


class MLflow:
    """MLflow: a run a seed in mlflow.db beside the runs, or where MLFLOW_TRACKING_URI says."""

    def __init__(self) -> None:
        self.mlflow = _module("mlflow", "mlflow")
        self.runs: dict[int, str] = {}

    def begin(self, runs: Runs) -> None:
        place = _folder_of(runs).resolve()
        address = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{place / 'mlflow.db'}")
        self.client = self.mlflow.MlflowClient(tracking_uri=address)
        known = self.client.get_experiment_by_name("fedglean")
        number = known.experiment_id if known else self.client.create_experiment("fedglean")
        for run in runs:
            name = f"{runs.name}, seed {run.seed}"
            self.runs[run.seed] = self.client.create_run(number, run_name=name).info.run_id
            for key, value in _settings(run).items():
                self.client.log_param(self.runs[run.seed], key, value)
        _replay(self, runs)

    def round(self, lines: Lines) -> None:
        for seed, line in lines.items():
            for name, value in scalars(line):
                self.client.log_metric(self.runs[seed], name, value, step=step_of(line))

    def end(self, runs: Runs) -> None:
        status = "FINISHED" if runs.finished else "KILLED"
        for number in self.runs.values():
            self.client.set_terminated(number, status)


def write_events(folders: Sequence[Path], out: Path) -> Path:
    """Histories as event files: below `out` a folder for each label and seed."""
    for runs in gather(folders):
        if runs:
            tracker = TensorBoard(out / runs.name.replace("/", "_"))
            tracker.begin(runs)
            tracker.end(runs)
    return out


def scalars(line: Line) -> Iterator[tuple[str, float]]:
    """The numbers of a round by name: `accuracy/model`, `bytes_up`."""
    for name, value in line.items():
        if isinstance(value, dict):
            for key, part in value.items():
                if isinstance(part, int | float):
                    yield f"{name}/{key}", part
        elif name == "refused":
            yield name, len(value)
        elif isinstance(value, int | float) and name not in ("round", "final"):
            yield name, value


def _replay(tracker: Tracker, runs: Runs) -> None:
    for run in runs:
        for line in run.history:
            tracker.round({run.seed: line})


def _settings(run: Run) -> Mapping[str, Any]:
    config = run.config
    shared = {"method": config.method, "data": config.data.title, "seed": config.seed}
    return {**shared, "rounds": config.rounds, "model": config.model.name, **config.settings}


def _folder_of(runs: Runs) -> Path:
    if runs.folder is None:
        raise ConfigError("this tracker writes beside the run; give the run a folder with `out`")
    return runs.folder


def _module(name: str, package: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        how = f"install it with pip install 'fedglean[{package}]'"
        raise ConfigError(f"this tracker needs the package {package} ({error}); {how}") from error
