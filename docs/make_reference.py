"""Writes docs/reference from the code: `make docs`. Nobody edits these pages; tests/test_docs.py
compares them.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import click
import typer
from typer.utils import get_params_from_function

import fedglean
from fedglean import errors, losses, randomness, testing, tree
from fedglean.cli import app
from fedglean.cli.look import LISTS, lines_of
from fedglean.cli.shared import INTERRUPTED
from fedglean.inputs.images import Images, Predictions
from fedglean.method import Batch, Declared, Expect, Hub, Me, Mixture, Sample, Trained
from fedglean.methods import common
from fedglean.models import Model
from fedglean.names import Names
from fedglean.optimiser import SGD
from fedglean.runs import checkpoint
from fedglean.runs.config import FLAT, Config
from fedglean.testing.checks import CHECKS
from fedglean.tree import Record
from fedglean.uploads import Reply
from fedglean_papers.presets import PRESETS

METHODS = Names.of().tables["METHODS"]
HERE = Path(__file__).resolve().parent / "reference"
MADE = "<!-- made by docs/make_reference.py from the code; `make docs` writes it anew -->"
WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false"}

#: What a method is handed, in the order in which its writer meets it, and the modules of pieces for
#: its losses.
HANDED = (
    Hub,
    Me,
    Declared,
    Images,
    Predictions,
    Trained,
    Reply,
    Model,
    Mixture,
    Batch,
    Sample,
    Record,
    SGD,
    Expect,
)
PIECES = (losses, randomness, common, tree)

#: The lines of metrics.jsonl; tests/test_docs.py holds this to what runs write.
METRICS = {
    "round": "which round, from 1 on",
    "final": "true in the line of what a method does after its last round, if it does something",
    "accuracy": (
        "share of the test images that each predictor gets right, by its name; in rounds with a "
        "test"
    ),
    "loss": "mean cross-entropy of each predictor on the test images; null where it is no number",
    "per_class": "accuracy by class of each predictor; null for a class without test images",
    "pseudo": "pseudo-labels of the round's clients against the truth, which the evaluator alone has: `accuracy` of "
    "all, `confident_share`, `confident_accuracy`; of real branches `confident_share` alone: "
    "nobody knows the truth",
    "report": "means over clients of what the method reports, such as its loss",
    "answered": "clients whose uploads to training were admitted",
    "abstained": "clients that were asked to train and had nothing to send",
    "refused": "uploads that were not admitted: `client` and `reason`",
    "bytes_down": "tensors sent to clients",
    "bytes_up": "tensors received from clients",
    "seconds": "wall time of the round; of several seeds side by side, this one's share",
    "phases": (
        "where the seconds went: `clients`, `hub`, `averaging`, `test`, and `write`, that of the "
        "round before"
    ),
    "widest": (
        "on a GPU whose memory was too small: how many clients were stacked at most from then on"
    ),
}
#: What lies in a run folder; tests/test_docs.py holds this to what runs write, too.
FILES = {
    "config.toml": "the resolved configuration; `fedglean run --config` takes it",
    "split.json": "who holds what: the numbers of images, with a checksum; `--split-file` takes it",
    "metrics.jsonl": "a line of JSON a round, see below",
    "lock": "locked by the process that is at work here; empty",
    "checkpoint": (
        "a folder with the last finished round: `current.json` names its files and their SHA-256"
    ),
    "model.safetensors": (
        "the final predictors of a finished run; `fedglean predict` and `fedglean export` read it"
    ),
    "curves.png": "accuracy by round",
    "tensorboard": "event files, where `--track` asked for them; so `mlflow.db` and `wandb`",
    "report.html": "where `fedglean report` was asked for it",
    "seeds.json": (
        "in the folder of several seeds: which they are; each has a run folder `seed-N` of its own"
    ),
    "done.json": "in the folder of several seeds: how many rounds are finished for all of them",
    "compare.json": (
        "in the folder of a comparison: what is compared, and the numbers once all is done"
    ),
    "federation.json": "of a real federation: its name and what the branches declared",
    "flower": "of a real federation: a folder with Flower's files and logs",
}


def pages() -> dict[str, str]:
    """Every page by file name; only what the package itself brings."""
    made = {
        "commands.md": commands(),
        "configuration.md": configuration_keys(),
        "methods.md": methods(),
        "names.md": names(),
        "presets.md": presets(),
        "files.md": files(),
        "python.md": python(),
        "writing-methods.md": writing_methods(),
    }
    return {name: f"{MADE}\n\n{text.rstrip()}\n" for name, text in made.items()}


def _page(parts: Iterable[str]) -> str:
    return "\n\n".join(part.strip() for part in parts)


def table(heading: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    heading = list(heading)
    lines = [heading, ["---"] * len(heading), *rows]
    return (
        "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines) + "\n"
    )


def _cell(text: Any) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def commands() -> str:
    found = dict(_all_commands(typer.main.get_command(app), "fedglean"))
    shared = _options_of(found["fedglean config"])  # which has none of its own
    return _page(
        [
            "# Commands",
            "`fedglean COMMAND --help` prints the same. Options of a configuration, which several "
            "commands take, are "
            "listed once, at the end; `--set` gives any other [key](configuration.md) or "
            "[setting of the method](methods.md). `--install-completion` lets the shell "
            "complete commands, options and names from then on.",
            *(_command(name, command, shared) for name, command in found.items()),
            "## Options of a configuration",
            _options(shared.values()),
        ]
    )


def _options_of(command: Any) -> dict[str, Any]:
    """Options by their flags."""
    return {each.opts[0]: each for each in command.params if each.param_type_name == "option"}


def _is_same(one: Any, other: Any) -> bool:
    return other is not None and one.help == other.help


def _all_commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    for word, inner in sorted(getattr(command, "commands", {}).items()):
        if getattr(inner, "commands", None):
            yield from _all_commands(inner, f"{name} {word}")
        else:
            yield f"{name} {word}", inner


def _command(name: str, command: Any, shared: Mapping[str, Any]) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    own = _options_of(command)
    lacking = [flag for flag in shared if flag not in own]
    takes_shared = len(lacking) < len(shared) / 2
    if takes_shared:
        own = {flag: each for flag, each in own.items() if not _is_same(each, shared.get(flag))}
    words = [each.make_metavar(click.Context(command)) for each in arguments]
    usage = " ".join([name, *words, *(["[OPTIONS]"] if own or takes_shared else [])])
    parts = [f"## {name}", f"```text\n{usage}\n```", inspect.cleandoc(command.help or "")]
    # Read off the function: with click 8.5 typer forgets what arguments mean.
    declared = get_params_from_function(command.callback)
    meanings = [
        [f"`{each.name}`", getattr(declared[each.name].default, "help", "") or ""]
        for each in arguments
    ]
    if any(meaning for _, meaning in meanings):
        parts.append(table(["argument", "meaning"], meanings))
    if own:
        parts.append(_options(own.values()))
    if takes_shared:
        but = " and ".join(f"`{flag}`" for flag in lacking)
        parts.append(
            "And the [options of a "
            f"configuration](#options-of-a-configuration){but and f' but {but}'}."
        )
    return _page(parts)


def _options(options: Iterable[Any]) -> str:
    rows = []
    for each in options:
        flags = ", ".join(f"`{flag}`" for flag in [*each.opts, *each.secondary_opts])
        given = each.opts[0] if each.default is True else each.default
        is_given = given is not None and given is not False and given != []
        default = f"`{given}`" if is_given else ""
        if each.required:
            default = "required"
        rows.append([flags, default, each.help or ""])
    return table(["option", "default", "meaning"], rows)


def configuration_keys() -> str:
    heading = ["key", "short name", "default", "values", "meaning"]
    method = ["`method`", "", "", "text", "one of [the methods](methods.md)"]
    parts = [
        "# Configuration",
        "`fedglean config METHOD` prints a whole configuration as TOML, `fedglean run --config "
        "FILE` takes one. "
        "Layers, the weak ones first: the defaults below, what the method brings along "
        "([methods](methods.md)), a "
        "preset, a file, flags. Unknown keys and values out of bounds are refused before anything "
        "is loaded.",
        "On the command line and in Python a key has a short name: `--set gate.quorum=0.3` is "
        "`--set quorum=0.3`.",
        "## At the top",
        table(heading, [method, *_keys(Config, "")]),
    ]
    for name, kind in get_type_hints(Config).items():
        if is_dataclass(kind):
            parts += [f"## [{name}]", table(heading, _keys(kind, f"{name}."))]
    return _page(
        [
            *parts,
            "## [settings]",
            "The settings of the method: [methods](methods.md) has those of each.",
        ]
    )


def _keys(kind: Any, prefix: str) -> Iterator[list[str]]:
    short = {path: f"`{name}`" for name, path in FLAT.items()}
    for field, row in _fields(kind):
        yield [f"`{field}`", short.get(prefix + field, ""), *row]


def _fields(kind: Any, instead: Mapping[str, Any] | None = None) -> Iterator[tuple[str, list[str]]]:
    """Default, values and meaning of every field that was made by `setting`."""
    hints, instead = get_type_hints(kind), instead or {}
    for field in fields(kind):
        if field.metadata.get("is_beside"):
            continue
        if "help" in field.metadata:
            default = _value(field.default)
            if field.name in instead and instead[field.name] != field.default:
                default = f"{_value(instead[field.name])} (class: {default})"
            yield (
                field.name,
                [default, _values(hints[field.name], field.metadata), field.metadata["help"]],
            )


def _value(value: Any) -> str:
    if value is MISSING:
        return ""
    return (
        "`none`"
        if value is None
        else f"`{str(value).lower() if isinstance(value, bool) else value}`"
    )


def _values(hint: Any, limits: Mapping[str, Any]) -> str:
    if limits.get("names") == "VIEWS":
        return "[a view](names.md#views)"
    if limits.get("choices"):
        return ", ".join(f"`{choice}`" for choice in limits["choices"])
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not type(None)]
    low, high = (_number(limits.get(bound)) for bound in ("low", "high"))
    bounds = (f" from {low}" if low else "") + (f" to {high}" if high else "")
    return (
        " or ".join(WORDS[kind] for kind in kinds)
        + bounds
        + (", or `none`" if type(None) in get_args(hint) else "")
    )


def _number(value: float | None) -> str:
    return "" if value is None else str(value) if isinstance(value, int) else f"{value:.6g}"


def methods() -> str:
    parts = [
        "# Methods and their settings",
        "`fedglean run METHOD --set NAME=VALUE`. Defaults are those of `fedglean run METHOD`, "
        "which suit digits; where "
        "they differ from the method's class, as its authors have it, that value follows. "
        "[../methods.md](../methods.md) says what each sends, keeps and where it differs from the "
        "released code.",
    ]
    for name, entry in METHODS.items():
        brings = ", ".join(
            f"`{key} = {value}`"
            for key, value in _flat(entry.defaults)
            if not key.startswith("settings.")
        )
        rows = [
            [f"`{field}`", *row]
            for field, row in _fields(entry.method, entry.defaults.get("settings", {}))
        ]
        parts += [f"## {name}", f"{entry.summary}.", f"Brings along: {brings}." if brings else ""]
        parts.append(table(["setting", "default", "values", "meaning"], rows))
    return _page(filter(None, parts))


def _flat(layer: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in layer.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def names() -> str:
    parts = [
        "# Names",
        "What `fedglean list` prints: the names that options and configuration keys take.",
    ]
    for name in LISTS:
        if name != "methods":
            rows = [[f"`{each}`", text] for each, text in lines_of(Names.of(), name)]
            parts += [f"## {name.capitalize()}", table(["name", "meaning"], rows)]
    return _page(parts)


def presets() -> str:
    parts = [
        "# Presets",
        "`fedglean run --preset NAME --data-root DATA`: the cells of the papers' tables and what "
        "their figures need, "
        "with the printed accuracy in per cent. `fedglean config --preset NAME` prints all that "
        "one says.",
    ]
    for paper in dict.fromkeys(name.partition("/")[0] for name in PRESETS):
        rows = [
            [
                f"`{name}`",
                ", ".join(f"{key} {value}" for key, value in (preset.published or {}).items()),
                preset.summary,
            ]
            for name, preset in PRESETS.items()
            if name.startswith(f"{paper}/")
        ]
        parts += [f"## {paper}", table(["preset", "published", "what"], rows)]
    return _page(parts)


def files() -> str:
    tree = inspect.cleandoc(checkpoint.__doc__ or "").partition("\n\n")[2]
    codes = [
        ["0", "done"],
        *([kind.exit_code, _first(kind)] for kind in _error_kinds()),
        [INTERRUPTED, "Interrupted; a run can be resumed."],
    ]
    return _page(
        [
            "# Files and exit codes",
            "## A run folder",
            table(["file", "what"], [[f"`{name}`", text] for name, text in FILES.items()]),
            "## The checkpoint",
            f"```text\n{textwrap.dedent(tree.partition(chr(10) * 2)[0])}\n```\n\n{tree.partition(chr(10) * 2)[2]}",
            "## metrics.jsonl",
            table(["key", "meaning"], [[f"`{name}`", text] for name, text in METRICS.items()]),
            "## Exit codes",
            table(["code", "meaning"], codes),
            "Any other error is a bug and keeps its traceback (exit code 1).",
        ]
    )


def _error_kinds() -> list[Any]:
    kinds = [
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, errors.FedgleanError)
    ]
    return sorted(
        (each for each in kinds if each is not errors.FedgleanError),
        key=lambda each: each.exit_code,
    )


def python() -> str:
    things = {name: getattr(fedglean, name) for name in fedglean.__all__}
    shown = [
        _class(name, each) if inspect.isclass(each) else _function(name, each)
        for name, each in things.items()
    ]
    return _page(["# Python", "What `import fedglean` offers.", *shown])


def writing_methods() -> str:
    """What a method is handed and may use, beside what `import fedglean` offers."""
    parts = [
        "# What a method is handed and may use",
        "Beside the [requests](python.md) that it awaits. [Write a method of your "
        "own](../tutorial-method.md) shows "
        "them at work.",
        *(
            _class(thing.__name__, thing) + f"\n\n`from {thing.__module__} import {thing.__name__}`"
            for thing in HANDED
        ),
    ]
    for module in PIECES:
        own = [
            each
            for name, each in vars(module).items()
            if inspect.isfunction(each) and not name.startswith("_")
        ]
        rows = [
            [f"`{_called(each)}`", _first(each)]
            for each in own
            if each.__module__ == module.__name__
        ]
        parts += [f"## {module.__name__}", f"{_first(module)}", table(["function", "what"], rows)]
    return _page([*parts, *_conformance()])


def _conformance() -> list[str]:
    """How a method is checked, and by which checks."""
    rows = [[f"`{check.__name__}`", _first(check)] for check in CHECKS]
    return [
        "## fedglean.testing",
        _first(testing),
        _function("check_method", testing.check_method).replace("## ", "### ", 1),
        _function("parametrize_with_checks", testing.parametrize_with_checks).replace(
            "## ", "### ", 1
        ),
        _class("CheckResult", testing.CheckResult).replace("## ", "### ", 1),
        table(["check", "what it holds a method to"], rows),
    ]


def _called(function: Any) -> str:
    return f"{function.__name__}({', '.join(inspect.signature(function).parameters)})"


def _function(name: str, thing: Any) -> str:
    node = ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]
    return f"## {name}\n\n```text\n{_signature(name, node)}\n```\n\n{inspect.getdoc(thing)}"


def _signature(name: str, node: Any) -> str:
    """As the source writes it, a parameter a line where it is long."""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    short = f"{name}({ast.unparse(node.args)}){returns}"
    return short if len(short) <= 100 else f"{name}(\n    {_broken(node.args)}\n){returns}"


def _broken(arguments: ast.arguments) -> str:
    text, lines, depth = ast.unparse(arguments), [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        lines[-1] += character
        if character == "," and depth == 0:
            lines.append("")
    return "\n    ".join(line.strip() for line in lines)


def _class(name: str, thing: Any) -> str:
    node = ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]
    assert isinstance(node, ast.ClassDef)
    lines = []
    for each in node.body:
        if isinstance(each, ast.AnnAssign):
            lines.append(ast.unparse(each))
        elif isinstance(each, ast.FunctionDef) and (
            each.name == "__init__" or not each.name.startswith("_")
        ):
            marks = {mark.id for mark in each.decorator_list if isinstance(mark, ast.Name)}
            is_property = bool(marks & {"property", "cached_property"})
            shown = (
                f"{each.name}: {ast.unparse(each.returns)}"
                if is_property and each.returns
                else _signature(each.name, each)
            )
            lines.append(
                f"{shown}    # {_first_line(ast.get_docstring(each))}"
                if ast.get_docstring(each)
                else shown
            )
    body = f"\n\n```text\n{chr(10).join(lines)}\n```" if lines else ""
    return f"## {name}{body}\n\n{inspect.getdoc(thing)}"


def _first(thing: Any) -> str:
    return _first_line(inspect.getdoc(thing))


def _first_line(text: str | None) -> str:
    return (text or "").partition("\n")[0]


if __name__ == "__main__":
    for name, text in pages().items():
        (HERE / name).write_text(text, "utf-8")
        print(HERE / name)
