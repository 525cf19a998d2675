"""Data sets by name: every layout gives the same images, and nothing damaged or missing gets
through.
"""

import gzip
import hashlib
import json
import os
import pickle
import shutil
import struct
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

import sheets
from fedglean.data.dataset import channel_statistics
from fedglean.data.formats import cifar10_parts, digest, read_idx, read_pickle
from fedglean.data.partition import class_ranks
from fedglean.data.published import Published, load_published
from fedglean.data.sources import DATASETS, PUBLISHED, Dataset, load
from fedglean.errors import ConfigError, DataError
from fedglean.names import Names
from fedglean.randomness import key, order
from fedglean.sealed import cache_folder

RANDOM = np.random.default_rng(7)


def sha(images: np.ndarray, labels: np.ndarray, positions: np.ndarray) -> str:
    raw = images.tobytes() + b"".join(struct.pack("<q", int(n)) for n in (*labels, *positions))
    return hashlib.sha256(raw).hexdigest()


def pixels(dataset: Dataset, split: str) -> np.ndarray:
    images = dataset.train_images if split == "train" else dataset.test_images
    return images.permute(0, 2, 3, 1).contiguous().numpy()


def idx(array: np.ndarray) -> bytes:
    return (
        struct.pack(">HBB", 0, 8, array.ndim)
        + struct.pack(f">{array.ndim}i", *array.shape)
        + array.tobytes()
    )


def tiny_mnist(folder: Path, zipped: bool = False) -> tuple[Published, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    digests, written = {}, []
    for stem, count in (("train", 6), ("t10k", 4)):
        images = RANDOM.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            raw = gzip.compress(idx(array)) if zipped else idx(array)
            (folder / f"{stem}-{name}-ubyte{'.gz' if zipped else ''}").write_bytes(raw)
        digests["train" if stem == "train" else "test"] = sha(images, labels, np.arange(count))
        written.append(images)
    return replace(PUBLISHED["mnist"], digests=digests, sizes=(6, 4)), written[0]


def cifar_arrays(batches: int, size: int, classes: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows of 3072 as CIFAR writes them, with labels."""
    rows = RANDOM.integers(0, 256, (batches, size, 3072), dtype=np.uint8)
    labels = RANDOM.integers(0, classes, (batches, size))
    return list(zip(rows, labels, strict=True))


def upright(rows: np.ndarray) -> np.ndarray:
    """Oracle for the order of CIFAR's bytes: one colour plane after the other."""
    out = np.empty((len(rows), 32, 32, 3), np.uint8)
    for colour in range(3):
        out[..., colour] = rows[:, 1024 * colour : 1024 * (colour + 1)].reshape(-1, 32, 32)
    return out


def cifar10_names() -> dict[str, str]:
    return {**{f"data_batch_{i + 1}": f"train_{i}" for i in range(5)}, "test_batch": "test_0"}


def write_cifar10(folder: Path, binary: bool = False) -> Published:
    folder.mkdir(parents=True, exist_ok=True)
    digests = {}
    generated = zip(cifar10_names().items(), cifar_arrays(6, 5, 10), strict=True)
    for number, ((file, part), (rows, labels)) in enumerate(generated):
        if binary:
            records = np.concatenate([labels[:, None].astype(np.uint8), rows], 1)
            (folder / f"{file}.bin").write_bytes(records.tobytes())
        else:
            content = {"data": rows, "labels": labels.tolist(), "batch_label": "x"}
            (folder / file).write_bytes(pickle.dumps(content, protocol=2))
        start = 0 if part == "test_0" else 10_000 * number
        digests[part] = sha(upright(rows), labels, start + np.arange(5))
    return replace(PUBLISHED["cifar10"], digests=digests, sizes=(25, 5))


def tar(folder: Path) -> Path:
    archive = folder.parent / (
        "cifar-10-binary.tar.gz" if folder.name.endswith("bin") else "cifar-10-python.tar.gz"
    )
    with tarfile.open(archive, "w:gz") as out:
        out.add(folder, folder.name)
    shutil.rmtree(folder)
    return archive


def pickle_of_2009(rows: np.ndarray, labels: list[int]) -> bytes:
    """As Python 2 and the numpy of its day wrote it: byte strings throughout, integers for
    flags.
    """

    def text(raw: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(raw)) + raw

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    empty = (
        b"cnumpy.core.multiarray\n_reconstruct\n"
        + b"cnumpy\nndarray\n"
        + number(0)
        + b"\x85"
        + text(b"b")
        + b"\x87R"
    )
    kind = b"cnumpy\ndtype\n" + text(b"u1") + number(0) + number(1) + b"\x87R"
    kind += b"(" + number(3) + text(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    shape = number(rows.shape[0]) + number(rows.shape[1]) + b"\x86"
    array = empty + b"(" + number(1) + shape + kind + b"\x89" + text(rows.tobytes()) + b"tb"
    listed = b"](" + b"".join(number(label) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + listed + b"u."


def test_digits_are_whole_and_split_by_a_fixed_key() -> None:
    digits = load("digits")
    raw = load_digits()
    places = order(key(0, "digits", "split"), 1797)
    assert digits.train_images.shape == (1437, 1, 8, 8) and digits.test_images.shape == (
        360,
        1,
        8,
        8,
    )
    assert torch.equal(
        torch.cat([digits.train_labels, digits.test_labels]), torch.from_numpy(raw.target)[places]
    )
    expected = np.floor(raw.images[places] * 255 / 16 + 0.5)
    assert np.array_equal(
        torch.cat([digits.train_images, digits.test_images])[:, 0].numpy(), expected
    )
    assert digits.train_images.max() == 255 and digits.pad == 1 and not digits.flip


def test_digits_statistics_are_those_of_its_training_part() -> None:
    digits = load("digits")
    values = digits.train_images.double() / 255
    assert digits.mean == pytest.approx((float(values.mean()),), rel=1e-12)
    assert digits.std == pytest.approx((float(values.std(correction=0)),), rel=1e-12)


def test_a_misspelt_name_gets_a_hint() -> None:
    with pytest.raises(ConfigError, match="did you mean 'cifar10'"):
        load("cifar-10")


@pytest.mark.parametrize("name", [name for name in DATASETS if name != "digits"])
def test_a_set_on_disk_needs_a_place(name: str) -> None:
    with pytest.raises(ConfigError, match="read from disk"):
        load(name)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_missing_set_says_where_to_get_it_and_where_it_was_looked_for(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(
        DataError, match=r"torchvision\.datasets\.\w+\(root.*, or name a folder that has .*"
    ) as caught:
        load(name, tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    "named", ["MNIST", "MNIST/raw/train-images-idx3-ubyte", "cifar-10-batches-py"]
)
def test_who_names_the_folder_of_the_set_itself_is_told_the_one_above(
    named: str, tmp_path: Path
) -> None:
    tiny_mnist(tmp_path / "MNIST" / "raw")
    write_cifar10(tmp_path / "cifar-10-batches-py")
    place = tmp_path / named
    with pytest.raises(DataError, match=f"in the folder above; use --data-root {place.parent}$"):
        load("cifar10" if "cifar" in named else "mnist", place)


@pytest.mark.parametrize("folder", ["MNIST/raw", "mnist", "."])
@pytest.mark.parametrize("zipped", [False, True])
def test_mnist_is_read_from_every_place(folder: str, zipped: bool, tmp_path: Path) -> None:
    known, first = tiny_mnist(tmp_path / folder, zipped)
    dataset = load_published(known, tmp_path)
    assert np.array_equal(dataset.train_images[:, 0].numpy(), first)
    assert (
        dataset.train_labels.tolist() == [0, 1, 2, 3, 4, 5]
        and dataset.train_labels.dtype == torch.int64
    )
    assert dataset.given is None


def test_changed_pixels_are_refused_by_file_name(tmp_path: Path) -> None:
    known, first = tiny_mnist(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(idx(first ^ 1))
    with pytest.raises(
        DataError, match=r"train-images-idx3-ubyte does not hold the published.*get it again"
    ):
        load_published(known, tmp_path)


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:-5], lambda raw: b"", lambda raw: raw[:2] + b"\x99" + raw[3:]]
)
def test_a_damaged_idx_file_is_refused_by_name(
    damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    for path in (tmp_path / "a-ubyte", tmp_path / "a-ubyte.gz"):
        raw = idx(np.zeros((3, 4, 4), np.uint8))
        path.write_bytes(damage(gzip.compress(raw) if path.suffix else raw))
        with pytest.raises(DataError, match=f"cannot read .*{path.name}.*get it again"):
            read_idx(path)


def test_a_file_that_is_missing_from_a_layout_is_named(tmp_path: Path) -> None:
    known, _ = tiny_mnist(tmp_path / "MNIST" / "raw")
    (tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte is missing"):
        load_published(known, tmp_path)


def test_a_whole_layout_is_preferred_to_one_that_was_begun(tmp_path: Path) -> None:
    known = write_cifar10(tmp_path / "cifar-10-batches-bin", binary=True)
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"broken download")
    assert len(load_published(known, tmp_path).train_labels) == 25


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("binary", [False, True])
def test_cifar10_is_read_from_pickles_and_records_packed_or_not(
    binary: bool, packed: bool, tmp_path: Path
) -> None:
    folder = tmp_path / ("cifar-10-batches-bin" if binary else "cifar-10-batches-py")
    known = write_cifar10(folder, binary)
    if packed:
        tar(folder)
    dataset = load_published(known, tmp_path)
    assert dataset.train_images.shape == (25, 3, 32, 32) and len(dataset.test_labels) == 5


def test_a_truncated_archive_is_refused_by_name(tmp_path: Path) -> None:
    known = write_cifar10(tmp_path / "cifar-10-batches-py")
    archive = tar(tmp_path / "cifar-10-batches-py")
    archive.write_bytes(archive.read_bytes()[:5000])
    with pytest.raises(DataError, match=r"cannot read .*cifar-10-python\.tar\.gz"):
        load_published(known, tmp_path)


def test_a_pickle_of_python_2_is_read_without_a_warning(tmp_path: Path) -> None:
    ((rows, labels),) = cifar_arrays(1, 3, 10)
    images, read = read_pickle(
        pickle_of_2009(rows, labels.tolist()), tmp_path / "data_batch_1", "labels"
    )
    assert np.array_equal(images, upright(rows)) and np.array_equal(read, labels)


@pytest.mark.parametrize("payload", [os.system, eval, np.load, Path, np.random.default_rng])
def test_a_pickle_that_names_a_function_is_refused_and_runs_nothing(
    payload: object, tmp_path: Path
) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return payload, (f"open({str(tmp_path / 'harm')!r}, 'w')",)

    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({"data": Trap(), "labels": []}, protocol=2))
    with pytest.raises(DataError, match="get a published one"):
        list(cifar10_parts({"data_batch_1": path}))
    assert not (tmp_path / "harm").exists()


def test_a_pickle_of_other_numbers_than_bytes_is_refused(tmp_path: Path) -> None:
    raw = pickle.dumps({"data": np.zeros((1, 3072)), "labels": [0]}, protocol=2)
    with pytest.raises(DataError, match="numbers of type 'f8'"):
        read_pickle(raw, tmp_path / "data_batch_1", "labels")


def tiny_cifar100(
    tmp_path: Path, write: Callable[[Path, str, np.ndarray, np.ndarray], None]
) -> Published:
    """Two classes: two parts of training images and two of test images."""
    digests, sizes = {}, []
    for split, first in (("train", 50), ("test", 40)):
        ((rows, labels),) = cifar_arrays(1, 150, 2)
        write(tmp_path, split, rows, labels)
        seen = [0, 0]
        parts: dict[int, list[int]] = {}
        for position, label in enumerate(labels):
            number = seen[label] // first if split == "train" else int(seen[label] >= first)
            parts.setdefault(number, []).append(position)
            seen[label] += 1
        for number, at in parts.items():
            digests[f"{split}_{number}"] = sha(upright(rows)[at], labels[at], np.array(at))
        sizes.append(len(labels))
    return replace(PUBLISHED["cifar100"], digests=digests, sizes=tuple(sizes))


def as_pickle(root: Path, split: str, rows: np.ndarray, labels: np.ndarray) -> None:
    (root / "cifar-100-python").mkdir(exist_ok=True)
    content = {
        "data": rows,
        "fine_labels": labels.tolist(),
        "coarse_labels": (labels // 5).tolist(),
    }
    (root / "cifar-100-python" / split).write_bytes(pickle.dumps(content, protocol=2))


def as_records(root: Path, split: str, rows: np.ndarray, labels: np.ndarray) -> None:
    (root / "cifar-100-binary").mkdir(exist_ok=True)
    both = np.stack([labels // 5, labels], 1).astype(np.uint8)
    (root / "cifar-100-binary" / f"{split}.bin").write_bytes(
        np.concatenate([both, rows], 1).tobytes()
    )


@pytest.mark.parametrize("write", [as_pickle, as_records])
def test_cifar100_comes_in_published_order_from_every_layout(
    write: Callable[[Path, str, np.ndarray, np.ndarray], None], tmp_path: Path
) -> None:
    kept: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def keep(root: Path, split: str, rows: np.ndarray, labels: np.ndarray) -> None:
        kept[split] = rows, labels
        write(root, split, rows, labels)

    dataset = load_published(tiny_cifar100(tmp_path, keep), tmp_path)
    for split, read in (("train", dataset.train_labels), ("test", dataset.test_labels)):
        rows, labels = kept[split]
        assert np.array_equal(pixels(dataset, split), upright(rows)) and np.array_equal(
            read.numpy(), labels
        )


def test_a_missing_part_has_to_be_allowed(tmp_path: Path) -> None:
    known = write_cifar10(tmp_path / "cifar-10-batches-py")
    (tmp_path / "cifar-10-batches-py" / "data_batch_2").unlink()
    with pytest.raises(DataError, match=r"data_batch_2 is missing.*--allow-partial"):
        load_published(known, tmp_path)
    dataset = load_published(known, tmp_path, allow_partial=True)
    assert len(dataset.train_labels) == 20 and len(dataset.test_labels) == 5


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_set_without_any_training_or_test_image_cannot_be_allowed(
    split: str, tmp_path: Path
) -> None:
    known, _ = tiny_mnist(tmp_path / "mnist")
    stem = "train" if split == "train" else "t10k"
    (tmp_path / "mnist" / f"{stem}-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match=f"only 0 of . {split} images"):
        load_published(known, tmp_path, allow_partial=True)


@pytest.mark.parametrize("folder", [".", "svhn"])
def test_svhn_mats_have_their_axes_turned_and_their_zeros_mended(
    folder: str, tmp_path: Path
) -> None:
    from scipy.io import savemat

    (tmp_path / folder).mkdir(exist_ok=True)
    digests, images = {}, RANDOM.integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    for name in ("train_32x32.mat", "test_32x32.mat"):
        path = tmp_path / folder / name
        savemat(
            path,
            {
                "X": images.transpose(1, 2, 3, 0),
                "y": np.array([[10], [1], [9], [10], [5]], np.uint8),
            },
        )
        digests[name] = hashlib.md5(path.read_bytes()).hexdigest()
    dataset = load_published(replace(PUBLISHED["svhn"], digests=digests, sizes=(5, 5)), tmp_path)
    assert np.array_equal(pixels(dataset, "train"), images) and dataset.test_labels.tolist() == [
        0,
        1,
        9,
        0,
        5,
    ]
    digests["train_32x32.mat"] = "0" * 32
    (tmp_path / folder / "train_32x32.mat").touch()
    with pytest.raises(DataError, match=r"train_32x32\.mat does not hold"):
        load_published(replace(PUBLISHED["svhn"], digests=digests, sizes=(5, 5)), tmp_path)


@given(st.lists(st.integers(0, 4), max_size=40))
def test_a_rank_counts_earlier_images_of_the_class(labels: list[int]) -> None:
    expected = [labels[:at].count(label) for at, label in enumerate(labels)]
    assert class_ranks(np.array(labels, dtype=np.int64)).tolist() == expected


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDGLEAN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/fedglean")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "fedglean"


def published(root: Path) -> dict[str, str]:
    """Checksums by name and part."""
    path = root / "decoded.json"
    if not path.exists():
        pytest.skip(f"{root} has no decoded.json to compare with")
    table = json.loads(path.read_text())
    return {
        name.replace("fashion_mnist", "fashion-mnist"): entry["sha256"]
        for name, entry in table.items()
        if "/" in name
    }


def test_the_table_of_digests_is_the_published_one(real_data: Path) -> None:
    theirs = published(real_data)
    for name in ("mnist", "fashion-mnist", "cifar10", "cifar100"):
        for part, sha256 in PUBLISHED[name].digests.items():
            assert theirs.pop(f"{name}/{part}") == sha256
    assert {name.partition("/")[0] for name in theirs} == {"svhn"}


@pytest.fixture(scope="module")
def standard(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the published form of what is there as sheets."""
    if not (real_data / "cifar10" / "train_0.webp").exists():
        return real_data
    folder = tmp_path_factory.mktemp("standard")
    sheets.write_cifar10(real_data, folder)
    for name in ("MNIST", "FashionMNIST"):
        (folder / name).symlink_to(real_data / name)
    return folder


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_real_images_have_the_published_digests_shape_classes_and_statistics(
    name: str, real_data: Path, standard: Path
) -> None:
    dataset, known = load(name, standard), PUBLISHED[name]
    for split, labels in (("train", dataset.train_labels), ("test", dataset.test_labels)):
        images = pixels(dataset, split)
        parts = [
            sha256
            for part, sha256 in published(real_data).items()
            if part.startswith(f"{name}/{split}")
        ]
        size = len(labels) // len(parts)
        for number, sha256 in enumerate(parts):
            at = np.arange(number * size, (number + 1) * size)
            assert sha(images[at], labels.numpy()[at], at) == sha256
    size = (1, 28, 28) if "mnist" in name else (3, 32, 32)
    assert dataset.train_images.shape[1:] == size and dataset.train_images.dtype == torch.uint8
    assert dataset.train_labels.unique().tolist() == list(range(len(known.classes)))
    assert known.mean == pytest.approx(channel_statistics(dataset.train_images)[0], abs=2e-3)


def test_sheets_give_digits_with_the_published_digest(real_data: Path) -> None:
    if not (real_data / "svhn" / "test.npz").exists():
        pytest.skip(f"{real_data} has no SVHN as sheets")
    part = sheets.svhn_part("test", real_data / "svhn")
    assert digest(part) == published(real_data)["svhn/test"]


def test_a_file_of_sheets_brings_what_there_is_of_a_set(real_data: Path) -> None:
    if not (real_data / "cifar100" / "labels.npz").exists():
        pytest.skip(f"{real_data} has no CIFAR-100 as sheets")
    source = Names.of(sheets.__file__).find("DATASETS", "cifar100-sheets")
    dataset = load("cifar100-sheets", real_data, source=source)
    assert dataset.train_images.shape[1:] == (3, 32, 32) and len(dataset.classes) == 100
    assert dataset.train_labels.unique().tolist() == list(range(100))
    mean, _ = channel_statistics(dataset.train_images)
    assert dataset.mean == pytest.approx(mean, abs=1e-2)


def test_some_of_the_images_are_the_same_ones_every_time_and_the_test_set_stays() -> None:
    whole, some = load("digits"), load("digits", images=100)
    assert torch.equal(load("digits", images=100).train_images, some.train_images)
    assert len(some.train_images) == len(some.train_labels) == 100
    assert torch.equal(some.test_images, whole.test_images)
    found = (some.train_images[:, None] == whole.train_images[None]).flatten(2).all(-1)
    assert torch.equal(whole.train_labels[found.int().argmax(1)], some.train_labels) and bool(
        found.any(1).all()
    )


def test_more_images_than_there_are_cannot_be_taken() -> None:
    with pytest.raises(
        ConfigError, match=r"data.images is 2000, but digits has only 1437 training images"
    ):
        load("digits", images=2000)
