"""What all commands share: their errors, the options of a configuration, progress, and where output goes."""

import errno
import inspect
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedglean.config import Config, configure
from fedglean.errors import ConfigError, FedgleanError, StorageError

DISK = {errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EPERM, errno.EDQUOT}
INTERRUPTED = 130
OUTSIDE = {"method": "name it after 'run'", "preset": "use --preset", "file": "use --config", "use": "write --use"}


#: As a newcomer needs them; what is not named here comes last.
ORDER = ("demo", "run", "resume", "compare", "report", "watch", "predict", "export", "partition", "list", "config",
         "reproduce", "tensorboard", "deploy")  # fmt: skip


class Commands(TyperGroup):
    """The place that all commands' errors pass."""

    def list_commands(self, ctx: Any) -> list[str]:
        known = [name for name in ORDER if name in self.commands]
        return known + [name for name in self.commands if name not in known]

    def invoke(self, context: Any) -> Any:
        try:
            return super().invoke(context)
        except FedgleanError as error:
            raise ended(f"error: {error}", error.exit_code) from error
        except KeyboardInterrupt as error:
            raise ended("stopped", INTERRUPTED) from error
        except OSError as error:
            if error.errno not in DISK:
                raise
            place = f"{error.filename}: " if error.filename else ""
            raise ended(f"error: {place}{error.strerror}", StorageError.exit_code) from error


def ended(sentence: str, code: int) -> typer.Exit:
    print(sentence, file=sys.stderr)
    return typer.Exit(code)


app = typer.Typer(cls=Commands, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]
Use = Annotated[
    Path | None, typer.Option(help="A Python file with methods, models, data sets, views and the like of your own.")
]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fedglean {version('fedglean')}")
        raise typer.Exit


@app.callback()
def _start(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Federated semi-supervised learning: few labels, many clients whose data never leaves them."""


def configuration(
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
    placement: Annotated[
        str | None, typer.Option(help="here, workers or ray: in this process, one a core, a cluster.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes; 0 is one a core.")] = None,
    block: Annotated[int | None, typer.Option(help="Clients that are served and summed together.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of torch.")] = None,
    use: Use = None,
    preset: Annotated[str | None, typer.Option(help="A cell of a paper: `fedglean list presets`.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file; flags override it.")] = None,
    set: Annotated[list[str] | None, typer.Option(help="Any other key: rate=0.1, gate.quorum=0.3.")] = None,
) -> Config:
    """The options that run, config and partition share."""
    given = {key: value for key, value in locals().items() if key not in ("method", "preset", "config", "set")}
    given["allow_partial"] = allow_partial or None
    return configure(method, preset, config, **given | dict(map(assignment, set or [])))


def assignment(text: str) -> tuple[str, Any]:
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
    shared = inspect.signature(configuration).parameters
    own = list(inspect.signature(command).parameters.values())[1:]

    @wraps(command)
    def wrapper(**given: Any) -> None:
        options = {name: given.pop(name) for name in shared}
        if not any(options[name] for name in ("method", "preset", "config")):
            options["method"] = otherwise
        command(configuration(**options), **given)

    wrapper.__signature__ = inspect.Signature([*shared.values(), *own])  # type: ignore[attr-defined]
    return wrapper


def say(text: str) -> None:
    print(text, flush=True)


def free(folder: Path) -> Path:
    """The folder, numbered where there is one of that name."""
    number, place = 1, folder
    while place.exists():
        number += 1
        place = folder.with_name(f"{folder.name}-{number}")
    return place


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        kept = any((folder / name).exists() for name in ("config.toml", "seeds.json", "compare.json"))
        how = f"'fedglean resume {folder}' goes on" if kept else "nothing was written yet"
        raise ended(f"stopped; {how}", INTERRUPTED) from error
