"""What all commands share: how errors end them, their order, and options that several take."""

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedglean.cli.options import help_of
from fedglean.errors import ConfigError, FedgleanError, StorageError
from fedglean.names import Names
from fedglean.report.tracker import TRACKERS
from fedglean.runs.config import Config, settings_of
from fedglean.runs.kinds import kind_of
from fedglean.version import __version__

# typer depends on click or, from 0.26 on, brings a copy of its own; this error is in either.
NoSuchOption = import_module(typer.BadParameter.__module__).NoSuchOption
DISK = {errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EPERM, errno.EDQUOT}
INTERRUPTED = 130
#: In the order in which a newcomer needs them; any other command comes last.
ORDER = (
    "demo run resume compare report watch predict export partition list config reproduce "
    "campaign verify tensorboard deploy"
)


class Commands(TyperGroup):
    """Turns the errors of every command into one sentence and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        known = [name for name in ORDER.split() if name in self.commands]
        return known + [name for name in self.commands if name not in known]

    def invoke(self, context: Any) -> Any:
        try:
            return super().invoke(context)
        except FedgleanError as error:
            raise ended(f"error: {error}", error.exit_code) from error
        except NoSuchOption as error:
            setting = error.option_name.lstrip("-").replace("-", "_")
            takes_settings = any(option.name == "set" for option in error.ctx.command.params)
            names = Names.of()
            methods = names.tables["METHODS"]
            is_setting = any(setting in settings_of(method, names) for method in methods)
            if not takes_settings or not is_setting:
                raise
            hint = f"a method's setting is given as --set {setting}=VALUE"
            sentence = f"error: there is no option {error.option_name}; {hint}"
            raise ended(sentence, ConfigError.exit_code) from error
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


app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)
Track = Annotated[
    str | None,
    typer.Option(
        help=f"What else is told of every round, as in tensorboard,wandb: {', '.join(TRACKERS)}."
    ),
]
Seeds = Annotated[
    int, typer.Option(min=1, help="How many seeds to train side by side, counting up from --seed.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Allow the code that the folder names, as it is now; read it before."
    ),
]
DataRoot = Annotated[Path | None, typer.Option(help="The folder with the data.", resolve_path=True)]
SetForAll = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting for all runs, such as device=cuda or compile=true."),
]
Use = Annotated[Path | None, typer.Option(help=help_of(Config, "use"))]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fedglean {__version__}")
        raise typer.Exit


@app.callback()
def _start(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Federated semi-supervised learning: few labels, many clients whose data never leaves them."""


def with_terminal(track: str | None, quiet: bool) -> list[str]:
    """The trackers that were asked for, and the terminal's line."""
    shown = [] if quiet else ["terminal"]
    return [*shown, *(track or "").split(",")]


def say(text: str) -> None:
    print(text, flush=True)


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        kept = kind_of(folder) is not None
        how = f"'fedglean resume {folder}' continues it" if kept else "nothing was written yet"
        raise ended(f"stopped; {how}", INTERRUPTED) from error
