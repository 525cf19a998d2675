"""Compare the results of two checkouts, byte for byte, on this machine.

    python tests/same_bits.py ../fedglean-0.1                # with this checkout
    python tests/same_bits.py OLD NEW --only methods/semifl  # a part of the cases

Both get the same command lines (for a federation, the same calls), in processes of their own, and
what they write is compared: models, checkpoints, metrics without seconds, splits, configurations, a
comparison's numbers. Only the command line and the formats of files are relied on, so modules may
move. What the old checkout wrote is kept, by commit and machine. Anything that differs makes the
exit code 1; new keys and renamed tensors are only noted.
"""

import argparse
import hashlib
import importlib.metadata
import inspect
import json
import os
import platform
import queue
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bits_written import compare, is_fine, told_of
from small_methods import METHODS, VARIANTS, holders, write_splits

HERE = Path(__file__).resolve()
PARTITIONS = ("iid", "classes:5", "dirichlet:0.3", "balanced-dirichlet:0.5",
              "hassle-dirichlet:0.5")  # fmt: skip
LAYOUTS = ("hub:20", "all-hub", "each:4", "fraction:0.1", "fraction:0.5,0,1", "all", "PL:10%",
           "LPL:20%", "UPL:10%", "LU:20%", "ALL:20%", "mismatch-digits:4",
           "mismatch:60,0.5")  # fmt: skip
DIRICHLET = {"semifl": "hub:100", "hassle": "LPL:10%", "scaffold": "fraction:0.1,0"}
MODELS = ("cnn", "mlp", "lenet", "resnet8", "cnn13", "wrn-28-1")
NORMS = ("static", "running", "group", "instance", "layer")
#: Switches of 0.1's methods that are methods of their own now.
MOVED = {"semifl": "semifl-table2", "hassle": "hassle-release"}
SWITCHES: dict[str, tuple[str, dict[str, Any]]] = {
    "parallel": ("semifl", {"combine": "parallel"}),
    "parallel-batch": ("semifl", {"combine": "parallel", "labels_from": "batch", "mixup": False}),
    "fine-tune-batch": ("semifl", {"labels_from": "batch", "mixup": False}),
    "halves": ("semifl", {"combine": "halves"}),
    "halves-batch": ("semifl", {"combine": "halves", "labels_from": "batch", "mixup": False}),
    "release": ("hassle", {"variant": "release", "residual_decay": 1e-4, "norm": "running"}),
    "release-bare": ("hassle", {"variant": "release", "residual": False}),
}
COMPARISONS = {
    "hub": "semifl:threshold=0.2,epochs=1 fedavg-fixmatch-hub:threshold=0.2,epochs=1 "
    "hub-all:epochs=1 --labels hub:50 --partition dirichlet:0.3 --seeds 2",
    "clients": "fedprox:epochs=1 fedmatch:epochs=1,threshold=0.2 --labels fraction:0.1 --seeds 1",
}
#: What has an option of its own; the rest is given to --set.
OPTIONS = ("data", "data_root", "partition", "labels", "clients", "split_file", "model", "norm",
           "rounds", "executor", "placement", "workers", "block", "seeds")  # fmt: skip


@dataclass(frozen=True)
class Case:
    """Command lines that run one after the other in one folder, or a federation of a method.

    The command line number `interrupt` gets Ctrl-C once two rounds are written.
    """

    name: str
    lines: tuple[tuple[str, ...], ...] = ()
    interrupt: int | None = None
    federation: str | None = None

    @property
    def key(self) -> str:
        content = json.dumps(asdict(self)).encode()
        return f"{self.name}-{hashlib.sha256(content).hexdigest()[:8]}"


def cases(inputs: Path) -> Iterator[Case]:
    """All cases but presets; `inputs` is where `write_inputs` wrote."""
    for name, settings in METHODS.items():
        for executor in ("loop", "stack"):
            line = train(name, settings, holders(name, inputs), executor=executor)
            yield Case(f"methods/{name}-{executor}", (line,))
    for label, (name, changes) in VARIANTS.items():
        line = train(name, METHODS[name], holders(name, inputs), changes)
        yield Case(f"variants/{label}", (line,))
    for label, (name, changes) in SWITCHES.items():
        line = train(name, METHODS[name], holders(name, inputs), changes)
        yield Case(f"switches/{label}", (line,))
    for partition in PARTITIONS:
        yield Case(f"splits/{partition}", tuple(divide(partition, layout) for layout in LAYOUTS))
    for name, labels in DIRICHLET.items():
        drawn = {"partition": "dirichlet:0.3", "labels": labels, "clients": 10}
        yield Case(f"splits/{name}-on-dirichlet", (train(name, METHODS[name], drawn),))
    for name, executor in {"semifl": "loop", "hassle": "stack", "scaffold": "loop"}.items():
        apart = {"placement": "workers", "workers": 2, "executor": executor}
        line = train(name, METHODS[name], holders(name, inputs), apart)
        yield Case(f"placements/workers-{name}", (line,))
    for name in ("semifl", "hassle", "fed-shvr"):
        yield Case(f"federations/{name}", federation=name)
    for name in ("semifl", "hassle", "fed-shvr", "scaffold"):
        for seeds in (1, 2):
            line = train(name, METHODS[name], holders(name, inputs), rounds=8, seeds=seeds)
            lines = (line, ("resume", "run", "--quiet"))
            yield Case(f"resume/{name}-{seeds}", lines, interrupt=0)
    for label, own in COMPARISONS.items():
        line = (
            f"compare {own} --clients 6 --rounds 2 --executor loop --device cpu --quiet --out all"
        )
        yield Case(f"compare/{label}", (tuple(line.split()),))
    yield from coloured(inputs)


def today(case: Case) -> Case:
    """The case as the new checkout knows it."""
    if not case.name.startswith("switches/"):
        return case
    _, method, *rest = case.lines[0]
    return replace(case, lines=(("run", MOVED[method], *rest),))


def coloured(inputs: Path) -> Iterator[Case]:
    """Nets, norms and views on small coloured images, from arrays and from folders."""
    arrays = {"data": "npz", "data_root": inputs / "colours.npz", "seeds": 1, "rounds": 1}
    folder = {"data": "folder", "data_root": inputs / "several", "seeds": 1, "rounds": 2}
    for model in MODELS:
        yield Case(f"models/{model}", (train("fedavg", METHODS["fedavg"], arrays, model=model),))
    for norm in NORMS:
        net = {"model": "resnet8", "norm": norm, "executor": "stack"}
        yield Case(f"models/resnet8-{norm}", (train("fedavg", METHODS["fedavg"], arrays, net),))
    single = folder | {"data_root": inputs / "single"}
    for strong in ("semifl-ra", "fixmatch-ra"):
        for name, data in {"semifl": arrays, "remixmatch": single}.items():
            line = train(name, METHODS[name], data, strong=strong)
            yield Case(f"views/{strong}-{name}", (line,))
    images = [str(path) for path in sorted((inputs / "several" / "test").glob("*/*.png"))]
    line = train("semifl", METHODS["semifl"], folder)
    yield Case("data/folder", (line, ("predict", "run", *images)))


def train(method: str, *tables: Mapping[str, Any], **own: Any) -> tuple[str, ...]:
    """The command line that trains a method into the folder `run`; later tables win."""
    chosen: dict[str, Any] = {
        "rounds": 3,
        "seeds": 2,
        "executor": "loop",
        "block": 3,
        "quorum": 0.0,
    }
    for table in (*tables, own):
        chosen |= table
    line = ["run", method, "--out", "run", "--quiet", "--device", "cpu"]
    for name, value in chosen.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if name in OPTIONS:
            line += [f"--{name.replace('_', '-')}", text]
        else:
            line += ["--set", f"{name}={text}"]
    return tuple(line)


def divide(partition: str, labels: str) -> tuple[str, ...]:
    """The command line that saves a split of the digits among ten clients."""
    file = re.sub(r"\W+", "-", labels) + ".split.json"
    chosen = ["--partition", partition, "--labels", labels, "--clients", "10"]
    return ("partition", *chosen, "--save", file)


def presets(old: "Checkout", folder: Path) -> list[Case]:
    """For each paper a case with the configurations of its presets."""
    listing = Case("presets", (("list", "presets"),))
    play(old, [listing], folder, 1)
    printed = told_of(folder / listing.key)[0]["out"]
    by_paper: dict[str, list[tuple[str, ...]]] = {}
    for name in dict.fromkeys(re.findall(r"^[\w-]+/\S+", printed, re.MULTILINE)):
        by_paper.setdefault(name.partition("/")[0], []).append(("config", "--preset", name))
    return [Case(f"presets/{paper}", tuple(lines)) for paper, lines in by_paper.items()]


def write_inputs(folder: Path) -> None:
    """Splits of the digits, and coloured images of several clients or one; always the same."""
    folder.mkdir(parents=True, exist_ok=True)
    write_splits(folder)
    draw = np.random.RandomState(0)
    label = np.arange(72) % 3
    paint = draw.randint(0, 256, (3, 32, 32, 3))
    images = (paint[label] // 2 + draw.randint(0, 128, (72, 32, 32, 3))).astype(np.uint8)
    np.savez(
        folder / "colours.npz",
        client_images=images[:42],
        client_ids=np.repeat([0, 1, 2, 3], [3, 9, 12, 18]),
        client_labels=np.where(np.arange(42) % 3 == 1, -1, label[:42]),
        hub_images=images[42:57],
        hub_labels=label[42:57],
        test_images=images[57:],
        test_labels=label[57:],
    )
    for number, image in enumerate(images):
        kind = f"kind{label[number]}"
        if number < 12:
            places = (f"several/test/{kind}", f"single/test/{kind}")
        elif number < 24:
            places = (f"several/hub/{kind}", f"single/clients/only/{kind}")
        else:
            places = (f"several/clients/c{number % 4}", "single/clients/only")
        for place in places:
            path = folder / place / f"{number:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)


@dataclass(frozen=True)
class Checkout:
    """A checkout, and metadata that make it look installed: no other's plug-ins must be found."""

    path: Path
    metadata: Path

    @property
    def environment(self) -> dict[str, str]:
        paths = os.pathsep.join([str(self.metadata), str(self.path / "src")])
        return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "COLUMNS": "240"}

    @property
    def commit(self) -> str | None:
        """The commit, or None if files were changed since or this is no repository."""
        git = ["git", "-C", str(self.path)]
        changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True)
        if changed.returncode or changed.stdout:
            return None
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
        return head.stdout.strip()


def checkout(path: Path, metadata: Path) -> Checkout:
    project = tomllib.loads((path / "pyproject.toml").read_text())["project"]
    info = metadata / "fedglean-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fedglean\nVersion: 0\n")
    lines = []
    for group, points in project.get("entry-points", {}).items():
        lines.append(f"[{group}]")
        lines += [f"{name} = {value}" for name, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return Checkout(path.resolve(), metadata)


def play(checkout: Checkout, wanted: Sequence[Case], folder: Path, jobs: int) -> None:
    """Play cases that were not played yet, in `jobs` processes; each writes to `folder`/KEY."""
    waiting: queue.SimpleQueue[Case] = queue.SimpleQueue()
    for case in wanted:
        if not is_played(folder / case.key):
            waiting.put(case)
    with ThreadPoolExecutor(jobs) as pool:
        for _ in range(jobs):
            pool.submit(have_played, checkout, waiting, folder)


def is_played(folder: Path) -> bool:
    return (folder / "told.json").exists() and all(map(is_fine, told_of(folder)))


def have_played(checkout: Checkout, waiting: "queue.SimpleQueue[Case]", folder: Path) -> None:
    """Have processes play what is waiting: one, and the next when that one dies."""
    while not waiting.empty():
        command = [sys.executable, str(HERE), "--serve", str(checkout.path)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=checkout.environment, **pipes) as server:
            assert server.stdin is not None and server.stdout is not None
            if not server.stdout.readline():
                return  # it says why
            while server.poll() is None:
                try:
                    case = waiting.get_nowait()
                except queue.Empty:
                    break
                place = folder / case.key
                shutil.rmtree(place, ignore_errors=True)
                place.mkdir(parents=True)
                server.stdin.write(json.dumps([asdict(case), str(place)]) + "\n")
                server.stdin.flush()
                if not server.stdout.readline():
                    break
            server.stdin.close()


def serve(own: Path) -> None:
    """Play the cases that arrive on standard input, until it ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.fsync = lambda descriptor: None
    warnings.filterwarnings("ignore", module="runpy")  # each line runs the same module again
    import fedglean

    assert Path(fedglean.__file__).is_relative_to(own), fedglean.__file__
    print("ready", file=answers)
    for request in sys.stdin:
        case, place = json.loads(request)
        os.chdir(place)
        told = []
        if case["federation"] is not None:
            code, out = outcome(partial(federation, case["federation"], own))
            told.append({"line": ["federation"], "code": code, "out": out})
        for number, line in enumerate(case["lines"]):
            sys.argv = ["fedglean", *line]
            module = partial(runpy.run_module, "fedglean", run_name="__main__")
            if number == case["interrupt"]:
                with interruption():
                    code, out = outcome(module)
            else:
                code, out = outcome(module)
            told.append({"line": line, "code": code, "out": out})
        Path("told.json").write_text(json.dumps(told, indent=1))
        print("played", file=answers)


def outcome(call: Callable[[], Any]) -> tuple[Any, str]:
    """The exit code of a program that runs in this process, and what it printed."""
    out = StringIO()
    code: Any = 0
    try:
        with redirect_stdout(out), redirect_stderr(out):
            call()
    except SystemExit as end:
        code = end.code or 0
    except BaseException as error:
        code = type(error).__name__
        out.write(traceback.format_exc())
    return code, out.getvalue()


@contextmanager
def interruption() -> Iterator[None]:
    """Ctrl-C, once two rounds are written in the folder `run`."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.002):
            written = [path.read_bytes() for path in Path("run").glob("**/metrics.jsonl")]
            if written and min(lines.count(b"\n") for lines in written) >= 2:
                os.kill(os.getpid(), signal.SIGINT)
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def federation(method: str, own: Path) -> None:
    """A federation on the grid in this process, as the tests of each checkout set it up."""
    sys.path.remove(str(HERE.parent))
    sys.path.insert(0, str(own / "tests"))
    try:
        from safetensors.torch import save_file

        import flower_grid

        prepare = sys.modules[flower_grid.Experiment.__module__].prepare  # type: ignore[attr-defined]
        experiment = prepare(flower_grid.small(method))
        grid = flower_grid.LocalGrid(flower_grid.branches(experiment, Path("branches")))
        progress = flower_grid.played(flower_grid.on_flower(experiment, grid))
    finally:
        sys.path[0] = str(HERE.parent)
    leaves = {path: leaf.clone() for path, leaf in tensors_in(progress.state, "state")}
    save_file(leaves, "federation.safetensors")
    Path("metrics.jsonl").write_text("\n".join(map(json.dumps, progress.history)))


def tensors_in(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """All tensors in anything, whatever the classes around them are called."""
    import torch

    if isinstance(value, torch.Tensor):
        yield path, value
        return
    if isinstance(value, list | tuple):
        parts = dict(enumerate(value))
    elif isinstance(value, Mapping):
        parts = dict(value)
    else:
        parts = getattr(value, "__dict__", {})
    for name, part in parts.items():
        yield from tensors_in(part, f"{path}.{name}")


def report(wanted: Sequence[Case], old: Path, new: Path) -> int:
    """Print a line a group of cases and what differs; how many cases differ."""
    found = {case.name: compare(old / case.key, new / today(case).key) for case in wanted}
    notes: dict[str, int] = {}
    for group in dict.fromkeys(name.partition("/")[0] for name in found):
        members = [name for name in found if name.partition("/")[0] == group]
        changed = [name for name in members if found[name].differences]
        print(f"{group:<12}{len(members) - len(changed):>4} equal{len(changed):>4} differ")
        for name in changed:
            first, *more = found[name].differences
            print(f"    {name}: {first}" + (f" (and {len(more)} more)" if more else ""))
        for name in members:
            for note in found[name].notes:
                notes[note] = notes.get(note, 0) + 1
    for note, count in sorted(notes.items()):
        print(f"note: {note} ({count} times)")
    return sum(bool(each.differences) for each in found.values())


def machine() -> str:
    """A name for what decides the last bits beside the code."""
    parts = [platform.machine(), platform.python_version()]
    parts += [importlib.metadata.version(name) for name in ("torch", "numpy", "scikit-learn")]
    processors = Path("/proc/cpuinfo")
    if processors.exists():
        parts += sorted(set(re.findall(r"(?:model name|flags)\s*: .*", processors.read_text())))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("old", type=Path, help="a checkout")
    parser.add_argument("new", type=Path, nargs="?", default=HERE.parents[1], help="another one")
    parser.add_argument("--only", default="", help="a regular expression that names of cases have")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--kept", type=Path, help="where the old checkout's results are kept")
    options = parser.parse_args()
    kept = options.kept or Path(tempfile.gettempdir(), "fedglean-same-bits")
    work = Path(tempfile.mkdtemp(prefix="same-bits-"))
    old = checkout(options.old, work / "old-metadata")
    new = checkout(options.new, work / "new-metadata")
    marks = hashlib.sha256(inspect.getsource(write_inputs).encode()).hexdigest()[:8]
    inputs = kept.resolve() / f"inputs-{marks}"  # part of the command lines
    ours = kept.resolve() / f"{machine()}-{old.commit}" if old.commit else work / "old"
    theirs = work / "new"
    write_inputs(inputs)
    everything = [*cases(inputs), *presets(old, ours)]
    wanted = [case for case in everything if re.search(options.only, case.name)]
    began = time.monotonic()
    play(old, wanted, ours, options.jobs)
    between = time.monotonic()
    play(new, [today(case) for case in wanted], theirs, options.jobs)
    seconds = between - began, time.monotonic() - between
    differ = report(wanted, ours, theirs)
    print(f"{len(wanted)} cases, {differ} differ; {seconds[0]:.0f} s for the old checkout, "
          f"{seconds[1]:.0f} s for the new one")  # fmt: skip
    if differ:
        print(f"what they wrote: {ours} and {theirs}")
        return 1
    shutil.rmtree(work)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(Path(sys.argv[2]))
    else:
        sys.exit(main())
