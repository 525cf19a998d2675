"""fedglean export: a trained model for other programs."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from torch import Tensor

from fedglean.cli.shared import Trust, app, say
from fedglean.errors import ConfigError, StorageError
from fedglean.export import Answer, check, need_onnx, read_run, save_onnx, save_state_dict
from fedglean.report.terminal import percent
from fedglean.runs.experiment import dataset_of_run
from fedglean.runs.folder import RunFolder
from fedglean.runs.trained import TrainedModel
from fedglean.trust import allow

Save = Callable[[TrainedModel, Path], Answer]


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    onnx: Annotated[
        Path | None,
        typer.Option(
            help="Write an ONNX file here; needs what the extra 'export' of fedglean installs."
        ),
    ] = None,
    state_dict: Annotated[
        Path | None,
        typer.Option(
            help="Write the weights of fedglean.export.Classifier, a torch module, here as "
            "safetensors."
        ),
    ] = None,
    predictor: Annotated[
        str | None,
        typer.Option(
            help="Which of the run's predictors to write, such as hassle's EM; by default the "
            "first."
        ),
    ] = None,
    checked: Annotated[
        bool,
        typer.Option(
            "--check/--no-check",
            help="Compare the written model with the run's on its test images.",
        ),
    ] = True,
    trust: Trust = False,
) -> None:
    """Write a trained model for other programs: it takes uint8 images and returns probabilities."""
    wanted: list[tuple[Path, Save]] = []
    if onnx is not None:
        wanted.append((onnx, save_onnx))
    if state_dict is not None:
        wanted.append((state_dict, save_state_dict))
    _check_names(folder, [path.resolve() for path, _ in wanted])
    if onnx is not None:
        need_onnx()
    if trust:
        allow(folder)
    trained = read_run(folder, predictor)
    images = None
    if checked:
        images = dataset_of_run(RunFolder(folder).config(), folder).test_images
    for path, save in wanted:
        _write(path, save, trained, images)


def _check_names(folder: Path, files: list[Path]) -> None:
    if not files:
        raise ConfigError(
            "no file to write was named; give --onnx model.onnx, --state-dict model.safetensors or "
            "both"
        )
    own = folder / "model.safetensors"
    if own.resolve() in files:
        raise ConfigError(f"{own} is the run's own model; choose another name")
    if len(set(files)) < len(files):
        raise ConfigError(f"--onnx and --state-dict both name {files[0]}; choose two names")


def _write(path: Path, save: Save, trained: TrainedModel, images: Tensor | None) -> None:
    answer = save(trained, path)
    if images is None:
        say(f"{path}: not compared with the run")
        return
    found = check(answer, trained, images)
    result = (
        f"on {found.images} test images, {percent(found.agreement)} of the labels agree with the "
        f"run's and probabilities differ by at most {found.difference:.0e}"
    )
    if not found.passed:
        path.unlink()
        raise StorageError(f"{path} was removed, because it is not the run's model: {result}")
    say(f"{path}: {result}")
