"""A user's own images: who holds what follows from folders or arrays, and what makes no sense is
refused by name.
"""

import os
import shutil
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedglean.data.folders import File, _chance, hold_out
from fedglean.data.photos import read_image
from fedglean.data.sources import Dataset, load
from fedglean.errors import DataError


def paint(path: Path, grey: int, size: tuple[int, int] = (16, 16), mode: str = "L") -> None:
    """An image of one grey level, which tells it apart in what is loaded."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, grey if mode == "L" else (grey, grey // 2, 255 - grey)).save(path)


def grey_levels(images: torch.Tensor) -> list[int]:
    assert bool((images == images[:, :1, :1, :1]).all())
    return images[:, 0, 0, 0].tolist()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Cats and dogs at the hub, one unlabelled client, one with both, a test set."""
    for number in range(3):
        paint(tmp_path / "hub" / "cat" / f"{number}.png", 10 + number)
        paint(tmp_path / "hub" / "dog" / f"{number}.png", 20 + number)
        paint(tmp_path / "clients" / "north" / "2024" / f"{number}.png", 30 + number)
        paint(tmp_path / "clients" / "south" / "dog" / f"{number}.png", 40 + number)
        paint(tmp_path / "clients" / "south" / "unlabelled" / "cat" / f"{number}.png", 50 + number)
    paint(tmp_path / "clients" / "north" / "loose.png", 33)
    paint(tmp_path / "test" / "cat" / "a.png", 60)
    paint(tmp_path / "test" / "dog" / "a.png", 70)
    return tmp_path


def refused(root: Path, sentence: str, name: str = "folder") -> None:
    with pytest.raises(DataError, match=sentence) as caught:
        load(name, root)
    assert "\n" not in str(caught.value)


def held(dataset: Dataset, indices: torch.Tensor) -> tuple[list[int], list[int]]:
    return grey_levels(dataset.train_images[indices]), dataset.train_labels[indices].tolist()


def test_folders_say_who_holds_what(root: Path) -> None:
    dataset = load("folder", root)
    split = dataset.given
    assert split is not None
    assert dataset.classes == ("cat", "dog") and split.names == ("north", "south")
    assert held(dataset, split.hub) == ([10, 11, 12, 20, 21, 22], [0, 0, 0, 1, 1, 1])
    assert held(dataset, split.labelled[0]) == ([], [])
    assert held(dataset, split.unlabelled[0]) == ([30, 31, 32, 33], [-1] * 4)
    assert held(dataset, split.labelled[1]) == ([40, 41, 42], [1, 1, 1])
    assert held(dataset, split.unlabelled[1]) == ([50, 51, 52], [-1] * 3)
    assert grey_levels(dataset.test_images) == [60, 70] and dataset.test_labels.tolist() == [0, 1]


def test_every_training_image_has_exactly_one_holder(root: Path) -> None:
    dataset = load("folder", root)
    assert dataset.given is not None
    everything = torch.cat([dataset.given.hub, *dataset.given.labelled, *dataset.given.unlabelled])
    assert everything.sort().values.tolist() == list(range(len(dataset.train_labels)))
    assert everything.dtype == torch.int64


def test_statistics_come_from_the_training_images(root: Path) -> None:
    dataset = load("folder", root)
    values = dataset.train_images.double() / 255
    assert (
        dataset.mean == pytest.approx([float(values.mean())])
        and dataset.pad == 2
        and not dataset.flip
    )
    assert dataset.std == pytest.approx([float(values.std(correction=0))])


@pytest.mark.parametrize(
    "suffix", ["png", "PNG", "bmp", "webp", "jpg", "jpeg", "jfif", "gif", "tif", "tiff", "ppm"]
)
def test_colour_images_of_every_kind_are_read(suffix: str, tmp_path: Path) -> None:
    for place in ("hub/a", "clients/x", "test/a"):
        paint(tmp_path / place / f"i.{suffix}", 100, mode="RGB")
    dataset = load("folder", tmp_path)
    assert dataset.train_images.shape == (2, 3, 16, 16)
    assert dataset.train_images[0, :, 3, 3].tolist() == pytest.approx([100, 50, 155], abs=4)


def test_other_files_and_hidden_ones_are_passed_over(root: Path) -> None:
    before = len(load("folder", root).train_labels)
    (root / "hub" / "cat" / "notes.txt").write_text("not an image")
    (root / "clients" / "north" / ".thumbnails").mkdir()
    paint(root / "clients" / "north" / ".thumbnails" / "0.png", 1)
    paint(root / "hub" / "cat" / ".0.png", 1)
    assert len(load("folder", root).train_labels) == before


def test_an_image_that_cannot_be_read_is_not_just_left_out(root: Path) -> None:
    (root / "clients" / "north").mkdir(parents=True, exist_ok=True)
    (root / "clients" / "north" / "IMG_1.HEIC").write_bytes(b"")
    refused(root, "IMG_1.HEIC is of a kind that cannot be read; convert it to png or jpg")


def test_without_a_hub_the_test_sets_folders_are_the_classes(root: Path) -> None:
    for folder in ("hub", "test/cat"):
        shutil.rmtree(root / folder)
    dataset = load("folder", root)
    assert dataset.given is not None
    assert (
        dataset.classes == ("dog",)
        and len(dataset.given.hub) == 0
        and len(dataset.given.labelled[1]) == 3
    )
    assert held(dataset, dataset.given.unlabelled[0])[0] == [30, 31, 32, 33], (
        "2024 is just a folder"
    )


def test_a_part_of_the_hub_is_held_out_where_there_is_no_test_set(tmp_path: Path) -> None:
    for number in range(40):
        paint(tmp_path / "hub" / "cat" / f"{number}.png", number)
        paint(tmp_path / "hub" / "dog" / f"{number}.png", 100 + number)
    paint(tmp_path / "clients" / "x" / "0.png", 200)
    dataset = load("folder", tmp_path)
    assert dataset.given is not None
    test, train = set(grey_levels(dataset.test_images)), set(held(dataset, dataset.given.hub)[0])
    assert not test & train and len(test | train) == 80
    assert dataset.test_labels.tolist() == [0] * 8 + [1] * 8
    for number in range(40, 42):
        paint(tmp_path / "hub" / "cat" / f"{number}.png", number)
    grown = set(grey_levels(load("folder", tmp_path).test_images)) - {40, 41}
    assert grown <= test and len(grown) >= 14, "two new files moved at most two others"


def hub_of(classes: list[set[int]]) -> tuple[Path, list[File], tuple[str, ...]]:
    """Files of several classes, by their numbers."""
    root, hub = Path("root"), []
    for label, numbers in enumerate(classes):
        folder = root / "hub" / f"class {label}"
        hub += [File(folder / f"{number}.png", label) for number in sorted(numbers)]
    return root, hub, tuple(f"class {label}" for label in range(len(classes)))


CLASSES = st.lists(st.sets(st.integers(0, 999), min_size=2, max_size=60), min_size=1, max_size=4)


@given(CLASSES)
def test_every_class_has_its_share_of_what_is_held_out(classes: list[set[int]]) -> None:
    root, hub, names = hub_of(classes)
    train, test = hold_out(root, hub, names)
    assert sorted(train + test, key=hub.index) == hub
    for label, numbers in enumerate(classes):
        held_out = [_chance(each.path, root / "hub") for each in test if each.label == label]
        kept = [_chance(each.path, root / "hub") for each in train if each.label == label]
        assert len(held_out) == 1 or abs(len(held_out) - len(numbers) / 5) <= 0.5
        assert held_out and kept and max(held_out) <= min(kept)


@given(CLASSES)
def test_a_new_file_moves_at_most_one_other(classes: list[set[int]]) -> None:
    before = set(hold_out(*hub_of(classes))[1])
    after = set(hold_out(*hub_of([classes[0] | {1000}, *classes[1:]]))[1])
    moved = {file.path.name for file in before ^ after} - {"1000.png"}
    assert len(moved) <= 1


def test_the_chance_to_be_held_out_is_uniform_over_names() -> None:
    values = sorted(_chance(Path(f"hub/cat/{number}.png"), Path("hub")) for number in range(2000))
    distance = max(abs(value - (rank + 0.5) / 2000) for rank, value in enumerate(values))
    assert distance < 1.63 / 2000**0.5


def test_a_class_of_one_image_cannot_be_held_out(tmp_path: Path) -> None:
    paint(tmp_path / "hub" / "cat" / "only.png", 1)
    paint(tmp_path / "clients" / "x" / "0.png", 2)
    refused(tmp_path, "cat has only one image")


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "nowhere is not a folder")


@pytest.mark.parametrize(
    ("right", "wrong"), [("hub", "Hub"), ("clients", "client"), ("test", "tests")]
)
def test_a_folder_that_would_be_passed_over_for_its_name_is_refused(
    right: str, wrong: str, root: Path
) -> None:
    (root / right).rename(root / wrong)
    refused(root, f"{wrong} must be called '{right}'; rename it")


@pytest.mark.parametrize("link", ["clients/east", "clients/north/2023", "hub/cat/9.png"])
def test_a_link_to_what_is_not_there_is_refused(link: str, root: Path) -> None:
    (root / link).symlink_to("/not/mounted")
    refused(root, f"{link} is a link that leads nowhere")


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, "neither hub/CLASS nor test/CLASS, so its classes are unknown")


def test_an_empty_class_folder_is_refused(root: Path) -> None:
    (root / "hub" / "bird").mkdir()
    refused(root, "bird holds no images")


@pytest.mark.parametrize("raw", [b"", b"not an image", b"\x89PNG\r\n\x1a\n" + bytes(40)])
def test_a_corrupt_image_is_refused_by_name(raw: bytes, root: Path) -> None:
    (root / "clients" / "north" / "bad.png").write_bytes(raw)
    refused(root, "bad.png cannot be read as an image")


def test_a_truncated_image_is_refused_by_name(root: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (16, 16), dtype=np.uint8)
    path = root / "clients" / "north" / "short.png"
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:-100])
    refused(root, "short.png cannot be read as an image")


def test_images_of_mixed_sizes_are_refused_by_name(root: Path) -> None:
    paint(root / "clients" / "north" / "wide.png", 1, size=(20, 16))
    refused(root, r"wide.png is 20 x 16 pixels, but .*0.png is 16 x 16; add --image-size 64")


def test_one_image_in_colour_makes_all_colour(root: Path) -> None:
    grey = load("folder", root)
    paint(root / "test" / "dog" / "colour.png", 1, mode="RGB")
    dataset = load("folder", root)
    assert torch.equal(dataset.train_images, grey.train_images.repeat(1, 3, 1, 1))
    assert dataset.test_images[-1, :, 0, 0].tolist() == [1, 0, 254]


def test_a_file_name_that_is_not_utf_8_is_refused(root: Path) -> None:
    picture = next((root / "hub").rglob("*.png"))
    shutil.copy(picture, os.fsencode(picture.parent) + b"/caf\xe9.png")
    refused(root, "rename it")


def test_deep_pixels_are_refused_by_name(root: Path) -> None:
    Image.fromarray(np.zeros((16, 16), np.uint16)).save(root / "clients" / "north" / "deep.png")
    refused(root, "deep.png has pixels of kind 'I;16'")


def test_deep_colours_are_refused_too(root: Path) -> None:
    """A PNG of 16 bits a channel, by hand: Pillow writes none, and reads its upper halves."""
    rows = zlib.compress(b"".join(b"\0" + bytes(range(96)) for _ in range(16)))
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", 16, 16, 16, 2, 0, 0, 0)),
        (b"IDAT", rows),
        (b"IEND", b""),
    )
    raw = b"\x89PNG\r\n\x1a\n"
    for kind, body in parts:
        raw += (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )
    (root / "clients" / "north" / "deep.png").write_bytes(raw)
    refused(root, "deep.png has pixels of kind 'RGB, 16 bits'")


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_what_is_transparent_is_seen_on_white(mode: str, tmp_path: Path) -> None:
    drawn = Image.new("RGBA", (16, 16), (0, 0, 0, 0))
    drawn.paste((0, 0, 0, 255), (4, 4, 8, 8))
    drawn.paste((0, 0, 0, 128), (8, 8, 12, 12))
    drawn.convert(mode).save(tmp_path / "drawn.png")
    image = read_image(tmp_path / "drawn.png")
    seen = np.asarray(image.convert("L"))
    assert image.mode == ("RGB" if mode == "RGBA" else "L")
    assert seen[0, 0] == 255 and seen[5, 5] == 0 and abs(int(seen[9, 9]) - 127) <= 1


def test_a_transparent_colour_of_a_palette_is_seen_on_white(tmp_path: Path) -> None:
    Image.new("P", (2, 2), 0).save(tmp_path / "drawn.gif", transparency=0)
    assert np.asarray(read_image(tmp_path / "drawn.gif")).tolist() == [[[255] * 3] * 2] * 2


def test_images_without_any_contrast_teach_nothing(tmp_path: Path) -> None:
    for place in ("hub/a", "hub/b", "clients/x", "test/a", "test/b"):
        paint(tmp_path / place / "i.png", 7)
    refused(tmp_path, "all training pixels in .* are the same")


def test_links_to_folders_are_followed_but_not_for_ever(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    paint(elsewhere / "scans" / "0.png", 91)
    (elsewhere / "scans" / "back").symlink_to(elsewhere)
    (root / "clients" / "north" / "linked").symlink_to(elsewhere)
    (root / "clients" / "south" / "cat").symlink_to(elsewhere / "scans")
    dataset = load("folder", root)
    assert dataset.given is not None
    assert held(dataset, dataset.given.unlabelled[0])[0] == [30, 31, 32, 91, 33]
    assert held(dataset, dataset.given.labelled[1]) == ([91, 40, 41, 42], [0, 1, 1, 1])


def test_the_hub_has_no_unlabelled_images(root: Path) -> None:
    paint(root / "hub" / "unlabelled" / "0.png", 5)
    refused(root, "hub/unlabelled is not a class")


@pytest.mark.parametrize(("written", "at_client"), [("cat", "Cat"), ("caf\u00e9", "cafe\u0301")])
def test_a_class_that_is_written_otherwise_at_a_client_is_refused(
    written: str, at_client: str, tmp_path: Path
) -> None:
    for place in (f"hub/{written}", f"clients/x/{at_client}", f"test/{written}"):
        paint(tmp_path / place / "0.png", len(place))
    refused(tmp_path, f"must be spelt like the class '{written}'")


def test_a_class_that_the_test_set_lacks_is_refused(root: Path) -> None:
    shutil.rmtree(root / "test" / "dog")
    refused(root, "has no images of the class 'dog'")


def test_a_test_class_that_nobody_knows_is_refused(root: Path) -> None:
    paint(root / "test" / "bird" / "a.png", 1)
    refused(root, "bird is none of the classes cat, dog")


def test_no_labelled_image_anywhere_is_refused(tmp_path: Path) -> None:
    for level in range(2):
        paint(tmp_path / "clients" / "x" / "2024" / f"{level}.png", level)
    paint(tmp_path / "test" / "cat" / "0.png", 1)
    refused(tmp_path, "no labelled images")


def test_no_client_is_refused(tmp_path: Path) -> None:
    for number in range(4):
        paint(tmp_path / "hub" / "cat" / f"{number}.png", 1)
    refused(tmp_path, "has no client")


def test_a_client_without_images_is_refused_by_name(root: Path) -> None:
    (root / "clients" / "empty").mkdir()
    refused(root, "client 'empty' .* has no images")


def test_an_image_outside_of_any_class_is_refused(root: Path) -> None:
    paint(root / "hub" / "stray.png", 1)
    refused(root, "stray.png lies beside the folders in")


def test_a_folder_next_to_class_folders_is_taken_for_a_misspelt_class(root: Path) -> None:
    paint(root / "clients" / "south" / "dgo" / "0.png", 1)
    refused(
        root, "dgo is beside folders of classes but is not a class; rename it to one of cat, dog"
    )


def arrays() -> dict[str, np.ndarray]:
    """Two clients, one with a label, and every image of a grey level of its own."""

    def images(*levels: int) -> np.ndarray:
        return np.stack([np.full((16, 24), level, np.uint8) for level in levels])

    return {
        "hub_images": images(1, 2),
        "hub_labels": np.array([0, 1]),
        "client_images": images(11, 12, 13, 14),
        "client_ids": np.array([7, 3, 7, 3]),
        "client_labels": np.array([-1, 1, -1, -1], np.int8),
        "test_images": images(21, 22),
        "test_labels": np.array([0, 1], np.uint8),
    }


def saved(folder: Path, content: Mapping[str, np.ndarray]) -> Path:
    np.savez(folder / "own.npz", **content)
    return folder / "own.npz"


def test_arrays_say_who_holds_what(tmp_path: Path) -> None:
    dataset = load("npz", saved(tmp_path, arrays()))
    split = dataset.given
    assert split is not None
    assert dataset.classes == ("0", "1") and split.names == ("3", "7") and dataset.pad == 2
    assert held(dataset, split.hub) == ([1, 2], [0, 1])
    assert held(dataset, split.labelled[0]) == ([12], [1]) and held(
        dataset, split.unlabelled[0]
    ) == ([14], [-1])
    assert held(dataset, split.labelled[1]) == ([], []) and held(dataset, split.unlabelled[1]) == (
        [11, 13],
        [-1, -1],
    )
    assert dataset.test_labels.dtype == torch.int64 and dataset.train_images.shape == (6, 1, 16, 24)


def test_hub_and_client_labels_may_be_left_out_but_not_both(tmp_path: Path) -> None:
    without_hub = {name: array for name, array in arrays().items() if not name.startswith("hub")}
    without_hub["client_labels"] = np.array([-1, 1, 0, -1])
    dataset = load("npz", saved(tmp_path, without_hub))
    assert dataset.given is not None and len(dataset.given.hub) == 0
    unlabelled = {name: array for name, array in arrays().items() if name != "client_labels"}
    assert load("npz", saved(tmp_path, unlabelled)).train_labels.tolist() == [0, 1, -1, -1, -1, -1]
    nothing = {name: array for name, array in without_hub.items() if name != "client_labels"}
    refused(saved(tmp_path, nothing), "no labelled images", "npz")


@pytest.mark.parametrize("axis", [1, 3])
@pytest.mark.parametrize("channels", [1, 3])
def test_channels_may_come_last_or_second(axis: int, channels: int, tmp_path: Path) -> None:
    content = {
        name: array if array.ndim == 1 else np.stack([array] * channels, axis)
        for name, array in arrays().items()
    }
    content["hub_images"] = content["hub_images"].copy()
    content["hub_images"][0, 0, 0, 0] = 99
    dataset = load("npz", saved(tmp_path, content))
    assert (
        dataset.train_images.shape == (6, channels, 16, 24)
        and int(dataset.train_images[0, 0, 0, 0]) == 99
    )


def test_class_names_are_taken_from_the_file(tmp_path: Path) -> None:
    dataset = load("npz", saved(tmp_path, {**arrays(), "classes": np.array(["cat", "dog"])}))
    assert dataset.classes == ("cat", "dog")


MISTAKES: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "floats": ({"hub_images": np.zeros((2, 16, 24))}, "hub_images is float64; expected uint8"),
    "axes": (
        {"hub_images": np.zeros((2, 16, 24, 5), np.uint8)},
        r"hub_images has shape \(2, 16, 24, 5\)",
    ),
    "sizes": (
        {"hub_images": np.zeros((2, 16, 16), np.uint8)},
        "hub_images are 1 x 16 x 16, but test_images are 1 x 16 x 24",
    ),
    "count": ({"hub_labels": np.array([0])}, "hub_labels is int64 of .*, not 2 integers"),
    "fractions": ({"client_ids": np.array([0.0, 1, 1, 1])}, "client_ids is float64"),
    "unknown at the hub": (
        {"hub_labels": np.array([0, -1])},
        "hub_labels has the label -1; expected 0 or more",
    ),
    "below unknown": ({"client_labels": np.array([-2, 0, 0, 0])}, "client_labels has the label -2"),
    "names": ({"classes": np.array(["cat"])}, "classes has 1 names, but there is a label 1"),
    "test": ({"test_labels": np.array([0, 0])}, "has no images of the class '1'"),
    "misspelt": ({"client_label": np.zeros(4, int)}, "has an unknown array 'client_label'; known"),
    "numbered from 1": (
        {"hub_labels": np.array([1, 2]), "test_labels": np.array([1, 2])},
        "has the label 0",
    ),
    "far apart": ({"test_labels": np.array([0, 10**9])}, "no image has the label 2"),
    "called alike": ({"classes": np.array(["cat", "cat"])}, "two classes are called 'cat'"),
    "tested only": (
        {"test_labels": np.array([0, 2]), "classes": np.array(list("abc"))},
        "has no images of the class 'b'",
    ),
    "unheard of": (
        {"hub_labels": np.array([0, 0]), "client_labels": np.zeros(4, int)},
        "labels of the class '1' of the test set",
    ),
    "pickles": ({"classes": np.array([{}], dtype=object)}, "cannot be read; write plain arrays"),
    "clients": (
        {
            "client_images": np.zeros((0, 16, 24), np.uint8),
            "client_ids": np.zeros(0, int),
            "client_labels": np.zeros(0, int),
        },
        "has no client",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_arrays_is_told_in_one_sentence(mistake: str, tmp_path: Path) -> None:
    wrong, sentence = MISTAKES[mistake]
    refused(saved(tmp_path, {**arrays(), **wrong}), f"own.npz.*{sentence}|{sentence}", "npz")


@pytest.mark.parametrize(
    "name", ["client_images", "client_ids", "test_images", "test_labels", "hub_labels"]
)
def test_a_missing_array_is_named(name: str, tmp_path: Path) -> None:
    content = arrays()
    del content[name]
    refused(saved(tmp_path, content), f"no (array )?'{name}'", "npz")


def test_what_is_no_npz_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.npz").write_bytes(b"PK\x03\x04 not really")
    refused(tmp_path / "own.npz", "own.npz cannot be read; write plain arrays", "npz")
    refused(tmp_path / "absent.npz", "cannot read .*absent.npz", "npz")
