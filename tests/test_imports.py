"""Who may know whom: read off the source files, not off what happens to be imported."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "fedglean"
FILES = sorted(SOURCE.rglob("*.py"))
IDS = [str(path.relative_to(SOURCE)) for path in FILES]
METHOD_FILES = [path for path in FILES if path.parent.name == "methods"]
ENGINE_FILES = [path for path in FILES if path.parent.name == "engine"]

#: Every room (a folder, or a module of its own) and what it may import: rooms, or single modules of
#: one. Whoever stands here imports from above; the exceptions are what a run tells to the outside.
PURE = "errors inputs losses method models optimiser randomness schema tree uploads"
ROOMS = {
    "version": "",
    "errors": "",
    "randomness": "",
    "schema": "errors",
    "models": "errors randomness",
    "tree": "errors models",
    "optimiser": "models tree",
    "losses": "models randomness tree",
    "uploads": "errors tree",
    "sealed": "errors models tree",
    "inputs": "errors randomness",
    "method": "inputs models optimiser randomness schema tree uploads",
    "methods": "errors inputs.images losses method models optimiser randomness tree",
    "data": "errors inputs method randomness schema sealed tree",
    "exchange": "errors inputs method randomness tree uploads",
    "engine": f"{PURE} data.federation exchange sealed version",
    "trust": "errors sealed",
    "studies": "",
    "tables": f"{PURE} data engine exchange methods report.tracker studies",
    "names": "errors models tables trust",
    "runs": f"{PURE} data engine exchange methods names report.page report.plots "
    "report.tracker sealed trust version",
    "report": "data errors names runs sealed trust",
    "doors": "engine exchange method optimiser report.tracker uploads",
    "federation": f"{PURE} data engine exchange names runs sealed version",
    "federation/flower": "data errors federation runs schema sealed",
    "export": "errors method models names runs sealed",
    "testing": f"{PURE} data engine exchange export federation methods runs sealed",
    "public": "errors method models.from_module runs",
    "__init__": "public version",
    "cli": "__main__ data engine errors export federation federation/flower methods models names "
    "report runs schema sealed studies trust version",
    "__main__": "cli version",
}
#: Modules with random numbers that depend on what ran before.
STATEFUL = ("random", "secrets", "uuid", "numpy.random")
TORCH_DRAWS = {
    "bernoulli",
    "default_generator",
    "dropout",
    "Generator",
    "initial_seed",
    "manual_seed",
    "multinomial",
    "normal",
    "poisson",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "random",
    "randperm",
    "seed",
}
#: The judge of methods sets the global generators and looks whether they moved; it draws nothing
#: from them.
WATCHED = {
    "torch.manual_seed",
    "torch.get_rng_state",
    "torch.set_rng_state",
    "numpy.random.seed",
    "numpy.random.get_state",
    "numpy.random.set_state",
    "random.seed",
    "random.getstate",
    "random.setstate",
}
#: A torch module is built while torch's generator stands at a seed of the run, and is put back.
SEEDED = {"torch.random", "torch.random.fork_rng", "torch.default_generator"}
METHODS_THAT_DRAW = {
    "bernoulli_",
    "cauchy_",
    "exponential_",
    "geometric_",
    "log_normal_",
    "normal_",
    "random_",
    "uniform_",
}


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def imported(path: Path) -> Iterator[str]:
    """Full names of all that a file imports anywhere, late imports included."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively, which hides what it knows"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def dotted(node: ast.AST) -> str:
    """`a.b.c` of an attribute, or nothing."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def uses(path: Path) -> Iterator[str]:
    """Dotted names in a file, each with its first part as imported: `np.random.rand` is
    `numpy.random.rand`.
    """
    tree = parsed(path)
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            aliases |= {
                alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
            }
    for node in ast.walk(tree):
        name = dotted(node)
        if name:
            first, dot, rest = name.partition(".")
            yield aliases.get(first, first) + dot + rest


def test_there_are_files_to_look_at() -> None:
    assert len(FILES) > 40 and len(METHOD_FILES) > 4 and len(ENGINE_FILES) > 3


def room_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return "federation/flower" if parts[:2] == ("federation", "flower") else parts[0]


def may_import(room: str, name: str) -> bool:
    """Whether a full name is of the room itself, or of what its line lists."""
    listed = [f"fedglean.{each.replace('/', '.')}" for each in [room, *ROOMS[room].split()]]
    if not any(within(name, each) for each in listed):
        return False
    is_flower = within(name, "fedglean.federation.flower")
    return not is_flower or "fedglean.federation.flower" in listed


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_a_room_imports_what_its_line_allows(path: Path) -> None:
    own = [name for name in imported(path) if within(name, "fedglean")]
    assert not [name for name in own if not may_import(room_of(path), name)]


def test_rooms_import_from_above_but_for_what_a_run_tells_to_the_outside() -> None:
    assert set(ROOMS) == {room_of(path) for path in FILES}
    upwards = []
    for place, room in enumerate(ROOMS):
        above = list(ROOMS)[:place]
        upwards += [(room, each) for each in ROOMS[room].split() if each.split(".")[0] not in above]
    assert set(upwards) == {
        ("tables", "report.tracker"),
        ("runs", "report.page"),
        ("runs", "report.plots"),
        ("runs", "report.tracker"),
        ("cli", "__main__"),
    }


def test_report_and_federation_do_not_know_each_other() -> None:
    assert "federation" not in ROOMS["report"] and "report" not in ROOMS["federation"]
    assert "report" not in ROOMS["federation/flower"]


def test_a_class_name_is_used_once() -> None:
    holders: dict[str, list[str]] = {}
    for path in FILES:
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef):
                holders.setdefault(node.name, []).append(path.relative_to(SOURCE).as_posix())
    assert not {name: files for name, files in holders.items() if len(files) > 1}


@pytest.mark.parametrize("path", METHOD_FILES, ids=lambda path: path.name)
def test_a_method_imports_no_other_heavy_machinery(path: Path) -> None:
    allowed = (
        "fedglean",
        "torch",
        "math",
        "collections",
        "dataclasses",
        "typing",
        "abc",
        "functools",
        "itertools",
    )
    assert all(name.split(".")[0] in allowed for name in imported(path))


@pytest.mark.parametrize("path", ENGINE_FILES, ids=lambda path: path.name)
def test_no_engine_names_a_method(path: Path) -> None:
    assert not [name for name in imported(path) if within(name, "fedglean.methods")]
    names = {"semifl", "hassle", "shvr", "fedavg", "fedmatch", "rscfed"}
    words = path.read_text("utf-8").lower()
    assert not [name for name in names if name in words]


def test_hidden_labels_are_known_to_the_evaluator_and_to_who_hands_them_over() -> None:
    holders = {
        path.relative_to(SOURCE).as_posix() for path in FILES if "Truth" in "".join(imported(path))
    }
    assert holders <= {"runs/evaluate.py", "runs/experiment.py"}


def test_flower_is_known_to_the_rooms_that_speak_to_it_alone() -> None:
    holders = {
        path.relative_to(SOURCE).as_posix()
        for path in FILES
        if any(within(n, "flwr") for n in imported(path))
    }
    assert holders and all(holder.startswith("federation/flower/") for holder in holders)


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_the_library_knows_no_paper(path: Path) -> None:
    assert not [name for name in imported(path) if within(name, "fedglean_papers")]


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_nothing_imports_torchvision(path: Path) -> None:
    assert not [name for name in imported(path) if within(name, "torchvision")]


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_nothing_is_unpickled_but_published_formats_by_a_restricted_reader(path: Path) -> None:
    pickles = {
        name
        for name in imported(path)
        if name.split(".")[0] in ("pickle", "dill", "cloudpickle", "shelve", "joblib", "marshal")
    }
    if path == SOURCE / "data" / "formats.py":
        assert pickles <= {"pickle"}
        assert {name for name in uses(path) if within(name, "pickle")} <= {
            "pickle",
            "pickle.Unpickler",
            "pickle.UnpicklingError",
        }
    else:
        assert not pickles
    loads = {name for name in uses(path) if name in ("torch.load", "torch.save", "torch.jit.load")}
    if path == SOURCE / "models" / "weights.py":
        assert loads == {"torch.load"}
    else:
        assert not loads


def test_torch_loads_weights_alone() -> None:
    """A user's own file may be a .pt, of which torch reads nothing but tensors."""
    loads = [
        node
        for path in FILES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and dotted(node.func) == "torch.load"
    ]
    for node in loads:
        (only,) = [each.value for each in node.keywords if each.arg == "weights_only"]
        assert isinstance(only, ast.Constant) and only.value is True
    assert len(loads) == 1


def test_numpy_never_unpickles() -> None:
    for path in FILES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant) and node.value.value is False, path


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_no_random_number_comes_from_a_generator_with_a_memory(path: Path) -> None:
    if path == SOURCE / "randomness.py":
        return
    used = set(uses(path))
    if path == SOURCE / "models" / "module.py":
        used -= SEEDED
    if path.parent == SOURCE / "testing":
        used -= WATCHED
    else:
        assert not [
            name for name in imported(path) if any(within(name, module) for module in STATEFUL)
        ]
    assert not [name for name in used if name.startswith("random.")]
    numpy_draws = {name for name in used if name.startswith("numpy.random.")} - {
        "numpy.random.Generator"
    }
    torch_draws = {f"torch.{name}" for name in TORCH_DRAWS} | {
        f"torch.cuda.{name}" for name in TORCH_DRAWS
    }
    functional = {
        f"torch.nn.functional.{name}"
        for name in (
            "dropout",
            "dropout1d",
            "dropout2d",
            "alpha_dropout",
            "rrelu",
            "gumbel_softmax",
        )
    }
    assert not numpy_draws and not used & (torch_draws | functional)
    assert not [
        name for name in used if "." in name and name.rpartition(".")[2] in METHODS_THAT_DRAW
    ]


def test_every_file_can_be_imported_by_itself() -> None:
    graph = {module(path): set(known_modules(path)) for path in FILES}
    assert not list(cycles(graph))


def module(path: Path) -> str:
    parts = ("fedglean", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def known_modules(path: Path) -> Iterator[str]:
    """Modules of ours that importing this file runs: not those imported in a function or for types
    alone.
    """
    modules = {module(file) for file in FILES}
    for node in parsed(path).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            found = name if name in modules else name.rpartition(".")[0]
            if found in modules and found != module(path):
                yield found


def cycles(graph: dict[str, set[str]]) -> Iterator[str]:
    """Modules that reach themselves."""
    for start in graph:
        seen: set[str] = set()
        waiting = list(graph[start])
        while waiting:
            current = waiting.pop()
            if current == start:
                yield start
                break
            if current not in seen:
                seen.add(current)
                waiting += graph[current]
