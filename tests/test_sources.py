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
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_digits

from fedglean.data.cache import cache_folder, cached
from fedglean.data.compact import SVHN_SHEETS, svhn_part, to_size
from fedglean.data.dataset import channel_statistics
from fedglean.data.digests import DIGESTS
from fedglean.data.formats import cifar10_pickles, class_ranks, read_idx, read_pickle
from fedglean.data.sources import DATASETS, PUBLISHED, Dataset, Published, load, load_published
from fedglean.errors import ConfigError, DataError
from fedglean.randomness import key, order

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
    with pytest.raises(DataError, match="which no published one does"):
        list(cifar10_pickles({"data_batch_1": path}))
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


def as_sheets(root: Path, split: str, rows: np.ndarray, labels: np.ndarray) -> None:
    folder = root / "cifar100"
    folder.mkdir(exist_ok=True)
    old = dict(np.load(folder / "labels.npz")) if (folder / "labels.npz").exists() else {}
    np.savez(folder / "labels.npz", **{**old, f"{split}_fine": labels.astype(np.uint8)})
    numbers = class_ranks(labels) // 50 if split == "train" else (class_ranks(labels) >= 40)
    for number in np.unique(numbers):
        tiles = upright(rows)[numbers == number]
        sheet = np.zeros((32 * 10, 32 * 10, 3), np.uint8)
        for at, tile in enumerate(tiles):
            sheet[32 * (at // 10) : 32 * (at // 10 + 1), 32 * (at % 10) : 32 * (at % 10 + 1)] = tile
        Image.fromarray(sheet).save(
            folder / f"{split}_{int(number)}.webp", lossless=True, exact=True
        )


@pytest.mark.parametrize("write", [as_pickle, as_records, as_sheets])
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


def test_a_part_of_cifar100_has_to_be_allowed(tmp_path: Path) -> None:
    known = tiny_cifar100(tmp_path, as_sheets)
    (tmp_path / "cifar100" / "train_1.webp").unlink()
    with pytest.raises(
        DataError, match=r"only \d+ of 150 training and 150 of 150 test images.*--allow-partial"
    ):
        load_published(known, tmp_path)
    dataset = load_published(known, tmp_path, allow_partial=True)
    assert 0 < len(dataset.train_labels) < 150


def test_no_training_image_at_all_cannot_be_allowed(tmp_path: Path) -> None:
    known = tiny_cifar100(tmp_path, as_sheets)
    for path in (tmp_path / "cifar100").glob("train_*.webp"):
        path.unlink()
    with pytest.raises(DataError, match="only 0 of 150 training"):
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


@pytest.mark.parametrize("shape", [(20, 20), (50, 41), (28, 32), (13, 40)])
def test_scaling_agrees_with_pillow_away_from_the_edges(shape: tuple[int, int]) -> None:
    smooth = RANDOM.integers(0, 256, (6, 6, 3), dtype=np.uint8)
    cut = np.asarray(Image.fromarray(smooth).resize(shape[::-1], Image.Resampling.BILINEAR))
    ours = to_size(cut[:, :, None])[:, :, 0].astype(int)
    theirs = np.asarray(Image.fromarray(cut).resize((32, 32), Image.Resampling.BICUBIC)).astype(int)
    edge = 8
    assert np.abs(ours - theirs)[edge:-edge, edge:-edge].max() <= 1


@given(st.lists(st.integers(0, 4), max_size=40))
def test_a_rank_counts_earlier_images_of_the_class(labels: list[int]) -> None:
    expected = [labels[:at].count(label) for at, label in enumerate(labels)]
    assert class_ranks(np.array(labels, dtype=np.int64)).tolist() == expected


def counted(calls: list[int]) -> Callable[[], Mapping[str, torch.Tensor]]:
    def decode() -> Mapping[str, torch.Tensor]:
        calls.append(1)
        return {
            "train_images": torch.arange(12, dtype=torch.uint8).reshape(3, 1, 2, 2),
            "train_labels": torch.arange(3),
        }

    return decode


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDGLEAN_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "source.bin"
    path.write_bytes(b"published")
    return path


def test_a_second_load_comes_from_the_cache(source: Path) -> None:
    calls: list[int] = []
    first, second = cached("x", [source], counted(calls)), cached("x", [source], counted(calls))
    assert len(calls) == 1 and all(torch.equal(first[name], second[name]) for name in first)
    assert [path.suffix for path in cache_folder().iterdir()] == [".safetensors"]


def test_a_changed_source_is_decoded_again(source: Path) -> None:
    calls: list[int] = []
    cached("x", [source], counted(calls))
    source.write_bytes(b"something else")
    cached("x", [source], counted(calls))
    assert len(calls) == 2


@pytest.mark.parametrize("at", [0, 9, 40, -1, -20])
def test_a_corrupt_cache_is_decoded_again_and_mended(at: int, source: Path) -> None:
    calls: list[int] = []
    first = cached("x", [source], counted(calls))
    (path,) = cache_folder().iterdir()
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)
    again = cached("x", [source], counted(calls))
    assert len(calls) == 2 and torch.equal(again["train_images"], first["train_images"])
    cached("x", [source], counted(calls))
    assert len(calls) == 2


def test_a_cache_that_cannot_be_written_is_no_error(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDGLEAN_CACHE", str(source / "below a file"))
    calls: list[int] = []
    for _ in range(2):
        assert len(cached("x", [source], counted(calls))["train_labels"]) == 3
    assert len(calls) == 2


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDGLEAN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/fedglean")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "fedglean"


def real(name: str, root: Path) -> Dataset:
    if not (root / "decoded.json").exists():
        pytest.skip(f"{root} has no decoded.json to compare with")
    return load(name, root, allow_partial=True)


def published(root: Path) -> dict[str, dict[str, object]]:
    table = json.loads((root / "decoded.json").read_text())
    return {
        name.replace("fashion_mnist", "fashion-mnist"): entry
        for name, entry in table.items()
        if "/" in name
    }


def test_the_table_of_digests_is_the_published_one(real_data: Path) -> None:
    if not (real_data / "decoded.json").exists():
        pytest.skip(f"{real_data} has no decoded.json to compare with")
    ours = {f"{name}/{part}": sha for name, parts in DIGESTS.items() for part, sha in parts.items()}
    theirs = {name: entry["sha256"] for name, entry in published(real_data).items()}
    assert {name: value for name, value in ours.items() if not name.endswith(".mat")} == theirs


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_real_images_have_the_published_digests(name: str, real_data: Path) -> None:
    dataset = real(name, real_data)
    for split in ("train", "test"):
        images = pixels(dataset, split)
        labels = (dataset.train_labels if split == "train" else dataset.test_labels).numpy()
        parts = {
            part: entry
            for part, entry in published(real_data).items()
            if part.startswith(f"{name}/{split}")
        }
        size = len(labels) // len(parts)
        for number, entry in enumerate(parts.values()):
            at = np.arange(number * size, (number + 1) * size)
            assert sha(images[at], labels[at], at) == entry["sha256"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_real_sets_have_the_published_shape_classes_and_statistics(
    name: str, real_data: Path
) -> None:
    if name == "svhn" and not any(
        path.stat().st_size > 10**8 for path in cache_folder().glob("svhn-*")
    ):
        pytest.skip(
            "SVHN takes 10 s to decode: set FEDGLEAN_CACHE to a folder where it was decoded once"
        )
    dataset, known = real(name, real_data), PUBLISHED[name]
    size = (1, 28, 28) if "mnist" in name else (3, 32, 32)
    assert dataset.train_images.shape[1:] == size and dataset.train_images.dtype == torch.uint8
    assert dataset.train_labels.unique().tolist() == list(range(len(known.classes)))
    assert known.mean == pytest.approx(channel_statistics(dataset.train_images)[0], abs=2e-3)


def test_real_svhn_test_digits_have_the_published_digest(real_data: Path) -> None:
    if not (real_data / "svhn" / "test.npz").exists():
        pytest.skip(f"{real_data} has no SVHN in the compact form")
    part = svhn_part(
        "test", {path.name: path for path in (real_data / "svhn").iterdir()}, SVHN_SHEETS["test"]
    )
    assert (
        sha(part.images, part.labels, np.arange(26_032))
        == published(real_data)["svhn/test"]["sha256"]
    )


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
