"""Photos of any size and kind come to one form, as Pillow's own calls by hand bring them there."""

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps
from safetensors import safe_open
from torch import Tensor
from typer.testing import CliRunner

from fedglean.cli import app
from fedglean.data import photos
from fedglean.data.folders import from_folder
from fedglean.data.party_folders import branch_images, hub_images
from fedglean.data.photos import AS_THEY_ARE, FITS, ImageForm, pixels_of
from fedglean.errors import ConfigError, DataError
from fedglean.export import load_classifier
from fedglean.federation.branch import Branch
from fedglean.federation.hub import federate
from fedglean.federation.local import LocalCarrier
from fedglean.randomness import key, uniform
from fedglean.runs.config import configure, fingerprint, read_toml, resolve, to_toml
from fedglean.runs.deploy_options import HubOptions
from fedglean.runs.experiment import dataset_of
from fedglean.runs.folder import RunFolder
from fedglean.runs.predict import predict

SIDES = st.integers(1, 60)


def noise(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    pixels = uniform(key(0, "noise", seed, width, height), (height, width, 3)) * 255
    return Image.fromarray(pixels.to(torch.uint8).numpy()).convert(mode)


def tensor(image: Image.Image) -> Tensor:
    pixels = torch.from_numpy(np.array(image))
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)


def photo_of_class(label: int, number: int) -> Image.Image:
    """Of a size of its own; class 0 is bright above, class 1 below."""
    width, height = 20 + 7 * (number % 5), 24 + 5 * (number % 4)
    pixels = np.array(noise(width, height, seed=number)) // 2
    half = slice(0, height // 2) if label == 0 else slice(height // 2, height)
    pixels[half] += 120
    return Image.fromarray(pixels)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos of many sizes: two classes at the hub and in the test set, two clients."""
    place = tmp_path_factory.mktemp("photos")
    for number in range(80):
        label = number % 2
        client = f"clients/{('north', 'south')[number // 2 % 2]}"
        folder = f"hub/{label}" if number < 16 else f"test/{label}" if number < 32 else client
        (place / folder).mkdir(parents=True, exist_ok=True)
        photo_of_class(label, number).save(place / folder / f"{number}.png")
    return place


@given(SIDES, SIDES, st.integers(1, 40), st.sampled_from(["L", "RGB"]))
def test_squashing_is_a_plain_resize(width: int, height: int, size: int, mode: str) -> None:
    image = noise(width, height, mode)
    made = ImageForm(size, "squash").fitted(image)
    assert made == image.resize((size, size), Image.Resampling.BILINEAR)


@given(SIDES, SIDES, st.integers(1, 40), st.sampled_from(["L", "RGB"]))
def test_cropping_is_pillows_fit(width: int, height: int, size: int, mode: str) -> None:
    image = noise(width, height, mode)
    made = ImageForm(size, "crop").fitted(image)
    assert made == ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)


@given(SIDES, SIDES, st.integers(60, 90), st.sampled_from(["L", "RGB"]))
def test_padding_keeps_all_of_the_image_on_black(
    width: int, height: int, size: int, mode: str
) -> None:
    image = noise(width, height, mode)
    made = ImageForm(size, "pad").fitted(image)
    inner = image.resize(
        (
            max(1, round(width * size / max(width, height))),
            max(1, round(height * size / max(width, height))),
        ),
        Image.Resampling.BILINEAR,
    )
    left, top = (size - inner.width) // 2, (size - inner.height) // 2
    assert made.crop((left, top, left + inner.width, top + inner.height)) == inner
    assert int(tensor(made).long().sum()) == int(tensor(inner).long().sum())


def test_a_crop_shows_the_centre_at_the_scale_of_the_shorter_side() -> None:
    """By hand: 40 x 20 to 10 is halved to 20 x 10, of which the middle 10 x 10 stays."""
    image = noise(40, 20)
    halved = image.resize((20, 10), Image.Resampling.BILINEAR)
    assert ImageForm(10).fitted(image) == halved.crop((5, 0, 15, 10))


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("sides", [(1, 5000), (5000, 1), (1, 1)])
def test_the_longest_image_and_the_smallest_come_to_the_size(
    fit: str, sides: tuple[int, int]
) -> None:
    assert ImageForm(8, fit).fitted(noise(*sides)).size == (8, 8)


@pytest.mark.parametrize("fit", FITS)
def test_an_image_of_the_size_stays_as_it_is(fit: str) -> None:
    image = noise(9, 9)
    assert ImageForm(9, fit).fitted(image) == image


def test_threads_keep_the_order(tmp_path: Path) -> None:
    paths, images = [], []
    for number in range(60):
        images.append(noise(1 + number * 7 % 50, 30, seed=number))
        paths.append(tmp_path / f"{number}.png")
        images[-1].save(paths[-1])
    found = pixels_of(paths, ImageForm(8, "squash"))
    for image, pixels in zip(images, found, strict=True):
        assert torch.equal(pixels, tensor(image.resize((8, 8), Image.Resampling.BILINEAR)))


def test_images_of_many_kinds_become_colour_with_one_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    noise(8, 8, "L").save(tmp_path / "a.png")
    noise(8, 8, "L").save(tmp_path / "b.png")
    noise(8, 8).convert("P").save(tmp_path / "c.png")
    noise(8, 8, "RGBA").save(tmp_path / "d.png")
    noise(8, 8, "CMYK").save(tmp_path / "e.jpg")
    noise(8, 8).save(tmp_path / "f.png", exif=turned)
    found = pixels_of(sorted(tmp_path.iterdir()))
    assert found.shape == (6, 3, 8, 8)
    assert torch.equal(found[0], tensor(noise(8, 8, "L")).repeat(3, 1, 1))
    assert torch.equal(found[5], tensor(noise(8, 8).rotate(-90)))
    assert [record.message for record in caplog.records] == [
        "of 6 images, 1 made colour from CMYK, 1 made colour from a palette, "
        "2 made colour from grey, 1 put on white, 1 turned upright"
    ]


def test_images_of_one_kind_need_no_note(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    noise(8, 8, "L").save(tmp_path / "a.png")
    assert pixels_of([tmp_path / "a.png"] * 3).shape == (3, 1, 8, 8)
    assert not caplog.records


def test_channels_that_are_named_are_made(tmp_path: Path) -> None:
    noise(8, 8, "L").save(tmp_path / "grey.png")
    noise(8, 8).save(tmp_path / "colour.png")
    paths = [tmp_path / "grey.png", tmp_path / "colour.png"]
    assert pixels_of(paths[:1], ImageForm(channels=3)).shape == (1, 3, 8, 8)
    grey = pixels_of(paths[1:], ImageForm(channels=1))
    assert torch.equal(grey[0], tensor(noise(8, 8).convert("L")))


def test_what_takes_long_says_how_far_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(photos, "PATIENCE", -1.0)
    noise(8, 8).save(tmp_path / "a.png")
    with caplog.at_level(logging.WARNING):
        pixels_of([tmp_path / "a.png"] * 2)
    assert [record.message for record in caplog.records][1] == "2 of 2 images read, 0 s to go"


def test_a_huge_image_is_refused(tmp_path: Path) -> None:
    Image.new("1", (9500, 9500)).save(tmp_path / "huge.png")
    Image.new("1", (14000, 14000)).save(tmp_path / "larger.png")
    for name in ("huge", "larger"):
        with pytest.raises(DataError, match=f"{name}.png has more than 89 million pixels; make it"):
            pixels_of([tmp_path / f"{name}.png"], ImageForm(8))


def test_a_truncated_image_is_refused(tmp_path: Path) -> None:
    noise(60, 60).save(tmp_path / "whole.jpg")
    raw = (tmp_path / "whole.jpg").read_bytes()
    (tmp_path / "short.jpg").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(DataError, match=r"short.jpg cannot be read as an image \(.*; replace it"):
        pixels_of([tmp_path / "whole.jpg"] * 20 + [tmp_path / "short.jpg"], ImageForm(8))


def test_a_size_that_is_not_named_changes_no_fingerprint_and_crop_need_not_be() -> None:
    plain = configure("semifl")
    assert "image" not in to_toml(plain) and plain.data.form == AS_THEY_ARE
    sized = configure("semifl", image_size=64)
    assert sized.data.form == ImageForm(64, "crop")
    assert fingerprint(sized) == fingerprint(configure("semifl", image_size=64, image_fit="crop"))
    others = [plain, configure("semifl", image_size=64, image_fit="pad")]
    assert fingerprint(sized) not in [fingerprint(other) for other in others]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"image_fit": "pad"}, "data.image_fit has no effect without a size; add --image-size 64"),
        ({"image_size": 64, "image_fit": "stretch"}, "image_fit 'stretch'; known: crop, pad, squ"),
        ({"image_size": 0}, "image_size must be from 1 to 4096, not 0"),
    ],
)
def test_a_size_or_fit_that_cannot_be_is_refused(options: dict, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        configure("semifl", **options)


def test_a_data_set_of_one_size_takes_none() -> None:
    with pytest.raises(ConfigError, match="the images of 'digits' have one size already"):
        dataset_of(configure("semifl", image_size=16))


def test_without_a_size_it_is_proposed(root: Path) -> None:
    with pytest.raises(DataError, match=r"pixels, but .* is .*; add --image-size 64"):
        from_folder(root)


def test_a_model_that_needs_larger_images_says_so(root: Path, tmp_path: Path) -> None:
    options = ["--data", "folder", "--data-root", str(root), "--image-size", "6"]
    said = CliRunner().invoke(
        app, ["run", "semifl", *options, "--model", "lenet", "--out", str(tmp_path / "run")]
    )
    assert said.exit_code == 2 and "lenet needs images of at least" in said.output


def test_all_of_a_federation_comes_to_the_same_pixels(root: Path) -> None:
    """The hub alone, a branch alone and a simulation of both read the same."""
    form = ImageForm(12, "pad")
    whole, hub = from_folder(root, form), hub_images(root, form)
    assert whole.given is not None
    assert torch.equal(whole.train_images[whole.given.hub], hub.train_images)
    assert torch.equal(whole.test_images, hub.test_images)
    for name, index in zip(whole.given.names, whole.given.unlabelled, strict=True):
        read = branch_images(root / "clients" / name)
        _, unlabelled = read(whole.classes, ImageForm(12, "pad", channels=3))
        assert torch.equal(unlabelled.store, whole.train_images[index])


@pytest.mark.parametrize("fit", FITS)
def test_a_run_on_photos_labels_photos_as_it_was_trained(
    fit: str, root: Path, tmp_path: Path
) -> None:
    options = ["--data", "folder", "--data-root", str(root), "--image-size", "12", "--quiet"]
    options += ["--set", f"image_fit={fit}", "--model", "cnn", "--rounds", "6"]
    said = CliRunner().invoke(app, ["run", "semifl", *options, "--out", str(tmp_path / "run")])
    assert said.exit_code == 0, said.output
    config = RunFolder(tmp_path / "run").config()
    assert config.data.form == ImageForm(12, fit)
    assert resolve(None, read_toml(tmp_path / "run" / "config.toml")) == config
    tests = sorted((root / "test").rglob("*.png"))
    told: list[str] = []
    found = predict(tmp_path / "run", tests, told.append)
    right = sum(one.label == one.path.parent.name for one in found) / len(found)
    last = RunFolder(tmp_path / "run").history()[-1]
    assert not told and right == pytest.approx(last["accuracy"]["model"]) and right > 0.7
    exported = tmp_path / "model.safetensors"
    said = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--state-dict", str(exported)])
    assert said.exit_code == 0, said.output
    with safe_open(exported, "pt") as file:
        about = json.loads(file.metadata()["fedglean"])
    assert about["images"] == f"brought to 12 x 12 by '{fit}' before training"
    images = pixels_of(tests, ImageForm(12, fit))
    ours = torch.tensor([list(one.probabilities.values()) for one in found])
    assert torch.allclose(load_classifier(exported)(images).double(), ours.double(), atol=1e-5)


def test_branches_bring_photos_to_the_size_of_the_hub(root: Path, tmp_path: Path) -> None:
    """North has grey photos too, which the hub's colour makes colour."""
    images = shutil.copytree(root, tmp_path / "images")
    noise(31, 17, "L").save(images / "clients" / "north" / "grey.png")
    config = configure("semifl", image_size=12, image_fit="pad", model="mlp", rounds=2)
    branches = [
        Branch(number, name, branch_images(images / "clients" / name), tmp_path / name)
        for number, name in enumerate(("north", "south"))
    ]
    out = tmp_path / "run"
    result = federate(LocalCarrier(branches), config, HubOptions(images, 2, out), print)
    assert result.config.data.form == ImageForm(12, "pad")
    assert RunFolder(out).model().form == ImageForm(12, "pad")
    simulated = replace(config, data=replace(result.config.data, root=str(images)))
    assert result.model.mean == pytest.approx(dataset_of(simulated).mean, rel=1e-14)
    assert len(predict(out, sorted((root / "test").rglob("*.png")))) == 16


def test_a_branch_of_many_sizes_is_told_what_the_hub_can_do(root: Path) -> None:
    sentence = r"add --image-size 64 \(in a federation at the hub\)"
    with pytest.raises(DataError, match=sentence):
        branch_images(root / "clients" / "north")(("0", "1"), AS_THEY_ARE)
