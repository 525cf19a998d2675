"""What all commands share: their errors, the options of a configuration, progress, and where output
goes.
"""

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
from click import NoSuchOption
from typer.core import TyperGroup

from fedglean.errors import ConfigError, FedgleanError, StorageError
from fedglean.methods import METHODS
from fedglean.runs.config import Config, configure, settings_of
from fedglean.runs.kinds import kind_of

DISK = {errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EPERM, errno.EDQUOT}
INTERRUPTED = 130
OUTSIDE = {
    "method": "name it as the argument",
    "preset": "use --preset",
    "file": "use --config",
    "use": "use --use",
}


#: In the order in which a newcomer needs them; any other command comes last.
ORDER = (
    "demo",
    "run",
    "resume",
    "compare",
    "report",
    "watch",
    "predict",
    "export",
    "partition",
    "list",
    "config",
    "reproduce",
    "tensorboard",
    "deploy",
)


class Commands(TyperGroup):
    """Turns the errors of every command into one sentence and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        known = [name for name in ORDER if name in self.commands]
        return known + [name for name in self.commands if name not in known]

    def invoke(self, context: Any) -> Any:
        try:
            return super().invoke(context)
        except FedgleanError as error:
            raise ended(f"error: {error}", error.exit_code) from error
        except NoSuchOption as error:
            setting = error.option_name.lstrip("-").replace("-", "_")
            takes = error.ctx is not None and any(
                each.name == "set" for each in error.ctx.command.params
            )
            if not takes or not any(setting in settings_of(method) for method in METHODS):
                raise
            told = (
                f"there is no option {error.option_name}; a method's setting is given as --set "
                f"{setting}=VALUE"
            )
            raise ended(f"error: {told}", ConfigError.exit_code) from error
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


app = typer.Typer(
    cls=Commands, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False
)
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
Use = Annotated[
    Path | None,
    typer.Option(
        help="A Python file with your own methods, models, data sets, partitions or views."
    ),
]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fedglean {version('fedglean')}")
        raise typer.Exit


@app.callback()
def _start(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Federated semi-supervised learning: few labels, many clients whose data never leaves them."""


def configuration(
    method: Annotated[
        str | None, typer.Argument(help="A method from `fedglean list methods`.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="A data set from `fedglean list data`.")] = None,
    data_root: Annotated[
        Path | None, typer.Option(help="The folder or file with the data.", resolve_path=True)
    ] = None,
    allow_partial: Annotated[
        bool,
        typer.Option(
            "--allow-partial", help="Accept a published data set of which a part is missing."
        ),
    ] = False,
    partition: Annotated[
        str | None, typer.Option(help="How images are spread over clients, such as dirichlet:0.1.")
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="Who has labels, such as hub:20 or fraction:0.1.")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="The number of clients.")] = None,
    split_file: Annotated[
        Path | None,
        typer.Option(help="A split that `fedglean partition --save` wrote.", resolve_path=True),
    ] = None,
    model: Annotated[str | None, typer.Option(help="A model from `fedglean list models`.")] = None,
    norm: Annotated[
        str | None, typer.Option(help="The model's normalisation, such as group.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="The number of rounds.")] = None,
    seed: Annotated[int | None, typer.Option(help="The seed of everything random.")] = None,
    device: Annotated[str | None, typer.Option(help="Where to compute: auto, cpu or cuda.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Precision of training: float32 or float64.")
    ] = None,
    executor: Annotated[
        str | None,
        typer.Option(
            help="Train clients one by one (loop), side by side (stack), or as is faster (auto)."
        ),
    ] = None,
    placement: Annotated[
        str | None,
        typer.Option(
            help="Where clients train: this process (here), one per core (workers), a cluster "
            "(ray)."
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="The number of worker processes; 0 means one per core or GPU."),
    ] = None,
    block: Annotated[
        int | None, typer.Option(help="How many clients are served and summed together.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="The number of torch threads.")] = None,
    use: Use = None,
    preset: Annotated[
        str | None, typer.Option(help="A published setting from `fedglean list presets`.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A configuration in TOML; flags override it.")
    ] = None,
    set: Annotated[
        list[str] | None,
        typer.Option(help="Any other setting, such as rate=0.1 or gate.quorum=0.3."),
    ] = None,
) -> Config:
    """The options that run, config and partition share."""
    given = {
        key: value
        for key, value in locals().items()
        if key not in ("method", "preset", "config", "set")
    }
    given["allow_partial"] = allow_partial or None
    return configure(method, preset, config, **given | dict(map(assignment, set or [])))


def assignment(text: str) -> tuple[str, Any]:
    """`key=value`, with the value as TOML reads it or else as text, so that most texts need no
    quotes.
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(f"'--set {text}' is not an assignment; write '--set key=value'")
    if key in OUTSIDE:
        raise ConfigError(
            f"'--set {text}' cannot choose the {key}, which decides what settings there are; "
            f"{OUTSIDE[key]}"
        )
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    return key, parsed if isinstance(parsed, str | int | float) else value


def configured(command: Callable[..., None], otherwise: str | None = None) -> Callable[..., None]:
    """Give a command the options of a configuration; it is called with the configuration in their
    place.

    `otherwise` is the method if none is named, for commands whose answer does not depend on it.
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
    """The folder itself, or with a number behind its name if it exists."""
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
        kept = kind_of(folder) is not None
        how = f"'fedglean resume {folder}' continues it" if kept else "nothing was written yet"
        raise ended(f"stopped; {how}", INTERRUPTED) from error
