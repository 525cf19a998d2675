"""The command line. A user's mistake ends as one sentence and the error's exit code; a bug keeps its traceback."""

import errno
import inspect
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial, wraps
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from fedglean.api import resume as go_on
from fedglean.api import resume_seeds as go_on_seeds
from fedglean.api import train, train_seeds
from fedglean.augment import STRONG, VIEWS
from fedglean.config import Config, configure, to_toml
from fedglean.data.catalogue import PUBLISHED
from fedglean.data.labels import LAYOUTS
from fedglean.data.partition import PARTITIONS
from fedglean.data.sources import load
from fedglean.data.split_file import save_split
from fedglean.deploy.commands import (
    Address,
    HubOptions,
    is_federation,
    need_flower,
    resume_hub,
    run_branch,
    run_hub,
    supernode_command,
)
from fedglean.errors import ConfigError, FedgleanError, StorageError, unknown
from fedglean.experiment import divide_up
from fedglean.folder import RunFolder
from fedglean.methods import METHODS
from fedglean.models import MODELS, NORMS
from fedglean.predict import predict as judge
from fedglean.presets import PRESETS
from fedglean.report.bubbles import bubble_chart, split_table
from fedglean.report.picture import curves
from fedglean.report.terminal import comparison, mean_line, names_table, percent, progress, result_table, seeds_table
from fedglean.result import Result
from fedglean.run import OnRound, OnRounds
from fedglean.seeds import SeedsResult, is_group

DEMO: dict[str, dict[str, Any]] = {
    "labels only": {"method": "hub-only", "labels": "hub:20"},
    "SemiFL": {"method": "semifl", "labels": "hub:20"},
    "all labels": {"method": "hub-all", "labels": "all-hub", "batch": 50, "epochs": 1},
}
DISK = {errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EPERM, errno.EDQUOT}
INTERRUPTED = 130
OUTSIDE = {"method": "name it after 'run'", "preset": "use --preset", "file": "use --config"}


class Commands(TyperGroup):
    """The place that all commands' errors pass."""

    def invoke(self, context: Any) -> Any:
        try:
            return super().invoke(context)
        except FedgleanError as error:
            raise _ended(f"error: {error}", error.exit_code) from error
        except KeyboardInterrupt as error:
            raise _ended("stopped", INTERRUPTED) from error
        except OSError as error:
            if error.errno not in DISK:
                raise
            place = f"{error.filename}: " if error.filename else ""
            raise _ended(f"error: {place}{error.strerror}", StorageError.exit_code) from error


def _ended(sentence: str, code: int) -> typer.Exit:
    print(sentence, file=sys.stderr)
    return typer.Exit(code)


app = typer.Typer(cls=Commands, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]


def main() -> None:
    app()


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fedglean {version('fedglean')}")
        raise typer.Exit


@app.callback()
def _start(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Federated semi-supervised learning: few labels, many clients whose data never leaves them."""


def _configuration(
    method: Annotated[str | None, typer.Argument(help="One of `fedglean list methods`.")] = None,
    data: Annotated[str | None, typer.Option(help="One of `fedglean list data`.")] = None,
    data_root: Annotated[Path | None, typer.Option(help="Where the data lies.", resolve_path=True)] = None,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Go on with a part of a published set.")
    ] = False,
    partition: Annotated[str | None, typer.Option(help="How images are spread, such as dirichlet:0.1.")] = None,
    labels: Annotated[str | None, typer.Option(help="Who has labels, such as hub:20.")] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients.")] = None,
    split_file: Annotated[Path | None, typer.Option(help="A split saved before.", resolve_path=True)] = None,
    model: Annotated[str | None, typer.Option(help="One of `fedglean list models`.")] = None,
    norm: Annotated[str | None, typer.Option(help="How the model normalises.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds.")] = None,
    seed: Annotated[int | None, typer.Option(help="Everything random follows from it.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or float64.")] = None,
    executor: Annotated[str | None, typer.Option(help="auto, loop or stack: clients one by one, or as one.")] = None,
    placement: Annotated[str | None, typer.Option(help="here or workers: in this process, or one a core.")] = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes; 0 is one a core.")] = None,
    block: Annotated[int | None, typer.Option(help="Clients that are served and summed together.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of torch.")] = None,
    preset: Annotated[str | None, typer.Option(help="A cell of a paper: `fedglean list presets`.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file; flags override it.")] = None,
    set: Annotated[list[str] | None, typer.Option(help="Any other key: rate=0.1, gate.quorum=0.3.")] = None,
) -> Config:
    """The options that run, config and partition share."""
    given = {key: value for key, value in locals().items() if key not in ("method", "preset", "config", "set")}
    given["allow_partial"] = allow_partial or None
    return configure(method, preset, config, **given | dict(map(_assignment, set or [])))


def _assignment(text: str) -> tuple[str, Any]:
    """`key=value`; the value as TOML reads it, or else as text: most texts need no quotes then."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(f"'--set {text}' is no assignment; write it as '--set key=value'")
    if key in OUTSIDE:
        raise ConfigError(f"'--set {text}' comes too late: {key} decides which keys there are; {OUTSIDE[key]}")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    return key, parsed if isinstance(parsed, str | int | float) else value


def configured(command: Callable[..., None], otherwise: str | None = None) -> Callable[..., None]:
    """Give a command the options of a configuration; it is called with the configuration in their place.

    `otherwise` is the method where none is named: who holds what can be asked without one.
    """
    shared = inspect.signature(_configuration).parameters
    own = list(inspect.signature(command).parameters.values())[1:]

    @wraps(command)
    def wrapper(**given: Any) -> None:
        options = {name: given.pop(name) for name in shared}
        if not any(options[name] for name in ("method", "preset", "config")):
            options["method"] = otherwise
        configuration = _configuration(**options)
        command(configuration, **given)

    wrapper.__signature__ = inspect.Signature([*shared.values(), *own])  # type: ignore[attr-defined]
    return wrapper


def _screen() -> Console:
    """Standard output; wide where no terminal folds it, for `grep` and log files."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=160, highlight=False)


@app.command()
@configured
def run(
    config: Config,
    out: Annotated[Path | None, typer.Option(help="The run folder; else one below runs/.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, side by side, from --seed on.")] = 1,
    quiet: Quiet = False,
) -> None:
    """Train, and write a folder with configuration, metrics, checkpoint, model and picture."""
    if seeds > 1:
        folder = out or _free(Path("runs", f"{config.method}-{config.data.name}-{seeds}-seeds"))
        with _resumable(folder), _progress(config, seeds, quiet) as on_rounds:
            group = train_seeds(config, seeds, folder, on_rounds)
        _show_seeds(group)
        return
    folder = out or _free(Path("runs", f"{config.method}-{config.data.name}-seed{config.seed}"))
    with _resumable(folder), _progress(config, 1, quiet) as on_rounds:
        result = train(config, folder, lambda line: on_rounds([line]))
    _show(result)


@app.command()
def resume(folder: Path, quiet: Quiet = False) -> None:
    """Go on with a run that was interrupted, or show one that is finished."""
    if is_federation(folder):
        raise typer.Exit(resume_hub(folder, _say))
    several = is_group(folder)
    places = sorted(folder.glob("seed-*")) if several else [folder]
    config = RunFolder(places[0]).config()
    played = 0
    with _resumable(folder), _progress(config, len(places), quiet) as on_rounds:

        def count(lines: list[dict[str, Any]]) -> None:
            nonlocal played
            played += 1
            on_rounds(lines)

        outcome = go_on_seeds(folder, count) if several else go_on(folder, lambda line: count([line]))
    if not played:
        print(f"{folder} was finished already")
    _show(outcome) if isinstance(outcome, Result) else _show_seeds(outcome)


@contextmanager
def _progress(config: Config, seeds: int, quiet: bool) -> Iterator[OnRounds]:
    name = config.method + (f", {seeds} seeds" if seeds > 1 else "")
    with progress(Console(stderr=True), name, config.rounds, quiet) as on_round:
        yield _means(on_round)


def _means(on_round: OnRound) -> OnRounds:
    return lambda lines: on_round(mean_line(lines) if len(lines) > 1 else lines[0])


def _free(folder: Path) -> Path:
    """The folder, numbered where there is one of that name."""
    number, place = 1, folder
    while place.exists():
        number += 1
        place = folder.with_name(f"{folder.name}-{number}")
    return place


@contextmanager
def _resumable(folder: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        kept = (folder / "config.toml").exists() or is_group(folder)
        how = f"'fedglean resume {folder}' goes on" if kept else "nothing was written yet"
        raise _ended(f"stopped; {how}", INTERRUPTED) from error


def _show(result: Result) -> None:
    config, folder = result.config, result.folder
    title = f"{config.method} on {config.data.name}, seed {config.seed}, {config.rounds} rounds"
    _screen().print(result_table(result, title))
    if folder is not None:
        print(f"run folder: {folder}\npicture:    {folder / 'curves.png'}")


def _show_seeds(group: SeedsResult) -> None:
    config, folder = group.results[0].config, group.folder
    title = f"{config.method} on {config.data.name}, {len(group.results)} seeds, {config.rounds} rounds"
    _screen().print(seeds_table(group.results, title))
    if folder is not None:
        print(f"run folders: {folder}/seed-*\npicture:     {folder / 'curves.png'}")


@app.command()
def demo(
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 3,
    out: Annotated[Path, typer.Option(help="Where the runs go; a demo that is there is replaced.")] = Path("runs/demo"),
    quiet: Quiet = False,
) -> None:
    """SemiFL on digits with 20 labels at the hub and 20 clients, against those labels alone and all labels."""
    runs: dict[str, list[Result]] = {}
    for label, options in DEMO.items():
        config = configure(data="digits", clients=20, **options)
        folder = _emptied(out / config.method)
        with progress(Console(stderr=True), f"{label:<11}", config.rounds, quiet) as on_round:
            runs[label] = train_seeds(config, seeds, folder, _means(on_round)).results
    title = "Test accuracy on digits" + (f", mean of {seeds} seeds (worst-best)" if seeds > 1 else "")
    _screen().print(comparison(runs, title))
    print(f"picture: {curves(runs, out / 'curves.png', '20 labels at the hub, 20 clients without any')}")


def _emptied(folder: Path) -> Path:
    """Only what a run left behind is removed."""
    if is_group(folder):
        shutil.rmtree(folder)
    return folder


@app.command("config")
@configured
def show_config(config: Config) -> None:
    """Print the resolved configuration as TOML."""
    print(to_toml(config), end="")


@app.command()
@partial(configured, otherwise="semifl")
def partition(
    config: Config,
    out: Annotated[Path | None, typer.Option(help="Draw the bubble chart into this file.")] = None,
    save: Annotated[Path | None, typer.Option(help="Save the split to this file, for --split-file.")] = None,
) -> None:
    """Show who holds what."""
    root = config.data.root
    dataset = load(config.data.name, Path(root) if root else None, config.data.allow_partial)
    split = divide_up(config, dataset)
    _screen().print(split_table(split, dataset.train_labels, dataset.classes))
    if out is not None:
        bubble_chart(split, dataset.train_labels, dataset.classes, out)
        print(f"picture: {out}")
    if save is not None:
        save_split(save, split)
        print(f"split:   {save}")


@app.command()
def predict(folder: Path, images: list[Path]) -> None:
    """Label images with the model of a finished run."""
    rows = [(str(each.path), each.label, percent(each.probability)) for each in judge(folder, images)]
    _screen().print(names_table("", rows))


deploy = typer.Typer(no_args_is_help=True, help="A real federation on Flower: docs/deploy.md walks through one.")
app.add_typer(deploy, name="deploy")
Insecure = Annotated[bool, typer.Option("--insecure", help="No TLS and no keys: on one machine, to try it out.")]
Keys = Annotated[Path | None, typer.Option(help="The folder that 'deploy keys' made.")]


@deploy.command("hub")
@configured
def deploy_hub(
    config: Config,
    *,
    images: Annotated[Path, typer.Option(help="A folder with hub/CLASS and perhaps test/CLASS.")],
    branches: Annotated[int, typer.Option(min=1, help="How many there are; their numbers begin with 0.")],
    out: Annotated[Path, typer.Option(help="The run folder; one that is there is gone on with.")],
    listen: Annotated[str, typer.Option(help="Where branches reach the hub.")] = "0.0.0.0:8000",
    keys: Keys = None,
    admit: Annotated[list[Path] | None, typer.Option(help="A branch's public key; once for each.")] = None,
    insecure: Insecure = False,
    deadline: Annotated[float, typer.Option(help="Seconds that a branch has for an answer.")] = 3600,
    grace: Annotated[float, typer.Option(help="Seconds for the others once a quorum has answered.")] = 600,
    gathering: Annotated[float, typer.Option(help="Seconds to wait for a quorum to be there.")] = 600,
) -> None:
    """Train with the branches that come: starts Flower's SuperLink and the run, and shows its rounds."""
    _need_keys(keys, insecure)
    times = {"deadline": deadline, "grace": grace, "gathering": gathering}
    options = HubOptions(images, out, branches, Address.read(listen), keys, admit or [], **times)
    raise typer.Exit(run_hub(config, options, _say))


@deploy.command("branch")
def deploy_branch(
    images: Annotated[
        Path, typer.Option(help="The branch's images; those in folders named like classes are labelled.")
    ],
    number: Annotated[int, typer.Option(min=0, help="Which branch this is: its identity in the federation.")],
    hub: Annotated[str, typer.Option(help="The hub's address, host:port.")],
    state: Annotated[Path, typer.Option(help="Where this branch keeps its own state.")],
    name: Annotated[str | None, typer.Option(help="What people call it.")] = None,
    keys: Keys = None,
    insecure: Insecure = False,
) -> None:
    """Take part with a folder of images, which stays here: starts Flower's SuperNode, again whenever it ends."""
    _need_keys(keys, insecure)
    files = (keys / "ca.crt", keys / "branch.key") if keys else (None, None)
    command = supernode_command(number, name or f"branch {number}", images, state, Address.read(hub), *files)
    raise typer.Exit(run_branch(command, state, _say))


def _say(text: str) -> None:
    print(text, flush=True)


def _need_keys(keys: Path | None, insecure: bool) -> None:
    if (keys is None) != insecure:
        raise ConfigError("say where the keys are with --keys, or that there shall be none with --insecure")


@deploy.command("keys")
def deploy_keys(
    folder: Path,
    hub: Annotated[list[str] | None, typer.Option(help="For the hub: its names and addresses, once for each.")] = None,
) -> None:
    """Make a branch's key pair, or with --hub the hub's certificate and authority."""
    need_flower()
    from fedglean.deploy.keys import make_branch_key, make_hub_keys

    if hub:
        print(f"give this file to every branch, as ca.crt in its keys: {make_hub_keys(folder, hub).authority}")
    else:
        print(f"give this file to the hub, for --admit: {make_branch_key(folder / 'branch.key')}")


def _data_lines() -> dict[str, str]:
    known = {
        name: f"{sum(each.sizes):,} images of {len(each.classes)} classes, from disk; get it with {each.fetch}"
        for name, each in PUBLISHED.items()
    }
    return {
        "digits": "scikit-learn's 1,797 images of 8 x 8 pixels, built in",
        **known,
        "folder": "your own: hub/CLASS/*.png, clients/NAME/** or clients/NAME/CLASS/*",
        "npz": "your own arrays in one .npz file",
    }


LISTS: dict[str, Callable[[], dict[str, str]]] = {
    "methods": lambda: {name: entry.summary for name, entry in METHODS.items()},
    "data": _data_lines,
    "models": lambda: {**MODELS, **{f"norm {name}": text for name, text in dict(NORMS).items()}},
    "partitions": lambda: dict(PARTITIONS),
    "labels": lambda: dict(LAYOUTS),
    "views": lambda: {**VIEWS, **{f"strong = {name}": text for name, text in STRONG.items()}},
}


@app.command("list")
def show_list(
    what: Annotated[
        str | None, typer.Argument(help=f"{', '.join(LISTS)}, presets, or a method for its settings.")
    ] = None,
) -> None:
    """Show what there is, a line each."""
    if what is not None and what not in (*LISTS, *METHODS, "presets"):
        raise unknown("list", what, [*LISTS, *METHODS, "presets"])
    screen = _screen()
    for name in LISTS if what is None else [what] if what in LISTS else []:
        screen.print(names_table(name, LISTS[name]().items()))
    if what in METHODS:
        screen.print(_settings_table(what))
    for table in _preset_tables() if what == "presets" else ():
        screen.print(table)
    if what is None:
        print(f"{len(PRESETS)} presets: fedglean list presets. Settings of a method: fedglean list METHOD")


def _settings_table(method: str) -> Table:
    shown = METHODS[method].defaults.get("settings", {})
    rows = [
        (field.name, str(shown.get(field.name, field.default)), field.metadata["help"])
        for field in fields(METHODS[method].method)  # type: ignore[arg-type]
    ]
    return names_table(f"settings of {method}: --set NAME=VALUE", rows)


def _preset_tables() -> Iterator[Table]:
    for paper in dict.fromkeys(name.partition("/")[0] for name in PRESETS):
        rows = [
            (name, ", ".join(f"{key} {number}" for key, number in (preset.published or {}).items()), preset.summary)
            for name, preset in PRESETS.items()
            if name.startswith(f"{paper}/")
        ]
        yield names_table(f"{paper}: --preset NAME, published accuracy in %", rows)
