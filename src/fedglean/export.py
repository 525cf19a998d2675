"""Export a trained predictor as ONNX, or as a plain `state_dict` for the torch module `Classifier`.

Both take raw uint8 images and return probabilities. What a reader must know beside the weights is
in the file's metadata. Weights are exported in float32, whatever they were trained in: that is what
runtimes compute with.
"""

import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from fedglean.errors import ConfigError, StorageError
from fedglean.method import Mixture
from fedglean.models import Architecture, Model
from fedglean.models.nets import NetKind
from fedglean.names import Names
from fedglean.runs.folder import RunFolder
from fedglean.runs.trained import TrainedModel
from fedglean.sealed import write_whole

#: How far probabilities may be from the original's: rounding of another runtime, and no more.
TOLERANCE = 1e-4
INPUT = "uint8, n x channels x height x width, values 0 to 255; normalised inside"
OUTPUT = "probabilities, n x classes"
MOMENTS = ("mean", "variance")
Answer = Callable[[Tensor], Tensor]


class Network(nn.Module):
    """One `Model` as a module, whose parameters and statistics have the names that they have."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        for name, (shape, *_) in architecture.plan.parameters.items():
            owner, own = self._place(name)
            owner.register_parameter(own, nn.Parameter(torch.zeros(shape)))
        self.statistics = []
        if architecture.norm in ("static", "running"):
            for (layer, channels), kind in product(architecture.plan.channels.items(), MOMENTS):
                self.statistics.append(f"{layer}.{kind}")
                owner, own = self._place(self.statistics[-1])
                owner.register_buffer(own, torch.ones(channels))

    def _place(self, name: str) -> tuple[nn.Module, str]:
        """The innermost of the modules that a dotted name runs through, and the name there."""
        *path, own = name.split(".")
        owner: nn.Module = self
        for step in path:
            if step not in owner._modules:
                owner.add_module(step, nn.Module())
            owner = owner.get_submodule(step)
        return owner, own

    def forward(self, images: Tensor) -> Tensor:
        names = self.architecture.plan.parameters
        parameters: dict[str, Tensor] = {name: self.get_parameter(name) for name in names}
        statistics = {name: self.get_buffer(name) for name in self.statistics}
        return Model(self.architecture, parameters, statistics).evaluate(images)


class Classifier(nn.Module):
    """A predictor as a torch module: raw images in, probabilities out; `logits` is for a loss.

    One network or, for a mixture, several whose logits are summed with `weights`. `mean` and `std`
    are of pixels in 0 to 255. A fresh one is empty: `load_classifier` reads a file,
    `load_state_dict` takes its tensors.
    """

    mean: Tensor
    std: Tensor
    weights: Tensor

    def __init__(self, architectures: Sequence[Architecture], classes: Sequence[str]) -> None:
        super().__init__()
        self.classes = tuple(classes)
        self.networks = nn.ModuleList(Network(each) for each in architectures)
        self.shape = tuple(architectures[0].shape)
        self.register_buffer("mean", torch.zeros(self.shape[0], 1, 1))
        self.register_buffer("std", torch.ones(self.shape[0], 1, 1))
        self.register_buffer("weights", torch.ones(len(architectures)))

    def logits(self, images: Tensor) -> Tensor:
        normalised = (images.to(self.mean.dtype) - self.mean) / self.std
        parts = zip(self.weights, self.networks, strict=True)
        return torch.stack([weight * network(normalised) for weight, network in parts]).sum(0)

    def forward(self, images: Tensor) -> Tensor:
        if images.dtype != torch.uint8 or tuple(images.shape[1:]) != self.shape:
            wanted, given = (" x ".join(map(str, sizes)) for sizes in (self.shape, images.shape))
            kind = str(images.dtype).removeprefix("torch.")
            raise ValueError(
                f"images must be uint8 from 0 to 255, n x {wanted}; these are {kind}, {given}"
            )
        return self.logits(images).softmax(-1)


def read_run(folder: Path, name: str | None = None) -> TrainedModel:
    """A finished run's first predictor, or the one that is named."""
    model = RunFolder(folder).model()
    trained = model.only(name or model.name)
    if any(part.needs_statistics and not part.statistics for part in _parts(trained)):
        raise StorageError(
            f"the model of {folder} has no batch-norm statistics, so it cannot be exported"
        )
    return trained


def _parts(trained: TrainedModel) -> tuple[Model, ...]:
    return trained.first.models if isinstance(trained.first, Mixture) else (trained.first,)


def _metadata(trained: TrainedModel) -> dict[str, Any]:
    size, about = trained.form.size, {}
    if size is not None:
        about["images"] = f"brought to {size} x {size} by '{trained.form.fit}' before training"
    return about | {
        "module": "fedglean.export.Classifier",
        "predictor": trained.name,
        "classes": trained.classes,
        "input": INPUT,
        "output": OUTPUT,
        "mean": trained.mean,
        "std": trained.std,
        "architectures": [part.architecture.to_json() for part in _parts(trained)],
    }


def classifier_of(trained: TrainedModel) -> Classifier:
    module = Classifier([part.architecture for part in _parts(trained)], trained.classes)
    weights = trained.first.weights if isinstance(trained.first, Mixture) else (1.0,)
    moments = torch.tensor([trained.mean, trained.std], dtype=torch.float64)[..., None, None] * 255
    state = {"mean": moments[0], "std": moments[1], "weights": torch.tensor(weights)}
    for place, part in enumerate(_parts(trained)):
        for name, value in {**part.parameters, **part.statistics}.items():
            state[f"networks.{place}.{name}"] = value
    module.load_state_dict(state)
    return module.eval()


def save_state_dict(trained: TrainedModel, path: Path) -> Answer:
    """Write a safetensors file of `Classifier.state_dict()`; what reads it back answers."""
    state = classifier_of(trained).state_dict()
    tensors = {name: value.contiguous() for name, value in state.items()}
    # One entry alone: safetensors writes several in an order that changes from process to process.
    write_whole(path, save(tensors, metadata={"fedglean": json.dumps(_metadata(trained))}))
    kinds = {part.architecture.name: part.architecture.kind for part in _parts(trained)}
    return _read_classifier(path, lambda name: kinds[name])


def load_classifier(path: Path | str, use: Path | str | None = None) -> Classifier:
    """The module of a file of `fedglean export --state-dict`; `use` is what brings its net."""
    return _read_classifier(Path(path), Names.of(use).net)


def _read_classifier(path: Path, net: Callable[[str], NetKind]) -> Classifier:
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})["fedglean"])
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        parts = [Architecture.from_json(each, net) for each in about["architectures"]]
        module = Classifier(parts, about["classes"])
        module.load_state_dict(state)
    except (OSError, SafetensorError, LookupError, ValueError, TypeError, RuntimeError) as error:
        told = f"{path} is not a file that 'fedglean export --state-dict' wrote ({error})"
        raise StorageError(told) from error
    return module.eval()


def save_onnx(trained: TrainedModel, path: Path) -> Answer:
    """Write an ONNX file, of `images` to `probabilities` for any batch; onnxruntime answers."""
    need_onnx()
    example = torch.zeros(2, *trained.shape, dtype=torch.uint8)
    with _quiet():
        program = torch.onnx.export(
            classifier_of(trained),
            (example,),
            input_names=["images"],
            output_names=["probabilities"],
            dynamic_shapes={"images": {0: torch.export.Dim("n")}},
            verbose=False,
        )
    assert program is not None
    for node in program.model.graph:
        node.metadata_props.clear()  # the exporter notes the source files' paths on this machine
    for name, value in _metadata(trained).items():
        text = value if isinstance(value, str) else json.dumps(value)
        program.model.metadata_props[name] = text
    write_whole(path, program.model_proto.SerializeToString())
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks on its own workings, such as that there is no torchvision."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def need_onnx() -> None:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"ONNX needs {' and '.join(missing)}; install with pip install 'fedglean[export]'"
        )


@dataclass(frozen=True)
class Check:
    """An exported file beside the original."""

    images: int
    difference: float
    agreement: float

    @property
    def passed(self) -> bool:
        return self.difference <= TOLERANCE


def check(answer: Answer, trained: TrainedModel, images: Tensor) -> Check:
    """The largest difference of a probability, and the share of images with the same label."""
    with torch.no_grad():
        theirs = torch.cat([answer(part) for part in torch.split(images, 500)]).double()
    ours = trained.logits(images).softmax(-1).double()
    same = (ours.argmax(-1) == theirs.argmax(-1)).double().mean()
    return Check(len(images), float((ours - theirs).abs().max()), float(same))
