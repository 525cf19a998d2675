"""Whether two folders hold the same results: what `same_bits.py` asks of each case."""

import json
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass
class Found:
    """What differs, and what is only worth a note: renamed tensors, keys of configurations."""

    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, place: str, old: Any, new: Any) -> None:
        if old != new:
            self.differences.append(f"{place}: {str(old)[:60]} became {str(new)[:60]}")


#: Of what a case leaves behind, what is no result.
IGNORED = (".png", ".html", "lock", "told.json", "current.json")
#: Keys that hold times, or what is made from the names of settings.
APART = re.compile(r"second|phases|^config$|sha256")
#: Where switches of a method became a method of their own.
RENAMED = {("semifl", "semifl-table2"), ("hassle", "hassle-release")}


def compare(old: Path, new: Path) -> Found:
    """What differs between two folders that `same_bits.play` wrote."""
    if not (new / "told.json").exists():
        return Found(["was not played"])
    found = Found()
    ours, theirs = told_of(old), told_of(new)
    if len(ours) != len(theirs):
        return Found([f"ends with {theirs[-1]['code']}"])
    for before, after in zip(ours, theirs, strict=True):
        compare_told(before, after, found)
    for name in sorted(results_in(old) | results_in(new)):
        ours, theirs = old / name, new / name
        if not theirs.exists():
            found.differences.append(f"{name} is missing")
        elif not ours.exists():
            found.differences.append(f"{name} is new")
        elif name.endswith(".safetensors"):
            compare_tensors(name, ours, theirs, found)
        elif name.endswith(".jsonl"):
            compare_values(json_lines(ours), json_lines(theirs), name, found)
        elif name.endswith("compare.json"):
            compare_values(
                json.loads(ours.read_bytes()), json.loads(theirs.read_bytes()), name, found
            )
        elif name.endswith(".toml"):
            compare_tables(ours.read_text(), theirs.read_text(), name, found)
        elif ours.read_bytes() != theirs.read_bytes():
            found.differences.append(f"{name}: other bytes")
    return found


def told_of(folder: Path) -> list[dict[str, Any]]:
    """Of each command line: the words, the exit code, what it printed."""
    told: list[dict[str, Any]] = json.loads((folder / "told.json").read_bytes())
    return told


def is_fine(told: dict[str, Any]) -> bool:
    """Whether a command line ended as it should; a layout may refuse a partition."""
    return told["code"] in (0, 130) or (told["code"], told["line"][0]) == (2, "partition")


def compare_told(old: dict[str, Any], new: dict[str, Any], found: Found) -> None:
    line = " ".join(old["line"])
    if not is_fine(old):
        found.differences.append(f"{line} fails in the old checkout:\n{old['out']}")
    elif old["code"] != new["code"]:
        found.differences.append(f"{line} ends with {new['code']}:\n{new['out']}")
    elif old["line"][0] == "config":
        compare_tables(old["out"], new["out"], line, found)
    elif old["line"][0] == "predict":
        found.add("predict", answers(old["out"]), answers(new["out"]))


def answers(table: str) -> list[str]:
    """Labels and probabilities, whatever stands between them."""
    return [" ".join(found) for found in re.findall(r"(\w+)[ │\t]*([\d.]+ ?%)", table)]


def results_in(folder: Path) -> set[str]:
    """The names of files to compare; what branches keep has no stable name."""
    names = set()
    for path in folder.rglob("*"):
        if path.is_file() and "branches" not in path.parts and not path.name.endswith(IGNORED):
            names.add(str(path.relative_to(folder)))
    return names


def json_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def compare_tables(old: str, new: str, place: str, found: Found) -> None:
    """Compare configurations, in which keys may come and go."""
    before, after = tomllib.loads(old), tomllib.loads(new)
    method = before.get("method"), after.get("method")
    if method in RENAMED:
        found.notes.append(f"configurations: the method {method[0]} is {method[1]} here")
        after["method"] = method[0]
    common: dict[str, Any] = {}
    for table, value in before.items():
        if isinstance(value, dict):
            other = after.get(table, {})
            common[table] = {key: value[key] for key in value if key in other}
            for key in sorted(value.keys() - other.keys()):
                found.notes.append(f"configurations: {table}.{key} is gone (from {value[key]})")
        else:
            common[table] = value
    compare_values(common, after, place, found, "configurations")


def compare_values(old: Any, new: Any, place: str, found: Found, noted: str | None = None) -> None:
    """Compare what JSON or TOML holds; a key that is new is worth a note."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(new.keys() - old.keys()):
            found.notes.append(f"{noted or Path(place).name}: {key} is new")
        for key in old:
            if key not in new:
                found.differences.append(f"{place}: no {key} any more")
            elif not APART.search(key):
                compare_values(old[key], new[key], f"{place}, {key}", found, noted)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (before, after) in enumerate(zip(old, new, strict=True)):
            compare_values(before, after, f"{place}, {number}", found, noted)
    else:
        found.add(place, old, new)


def compare_tensors(name: str, old: Path, new: Path, found: Found) -> None:
    """Compare tensors by name, or where all names changed by what is in them."""
    notes, before = read_tensors(old)
    other_notes, after = read_tensors(new)
    compare_values(notes, other_notes, f"{name}, notes", found)
    if before == after:
        return
    if sorted(before.values()) == sorted(after.values()):
        kind = "checkpoint" if "checkpoint" in name else Path(name).name
        found.notes.append(f"{kind}: tensors have other names")
        return
    changed = [path for path in before if before[path] != after.get(path)]
    changed += [path for path in after if path not in before]
    first = distance(before.get(changed[0]), after.get(changed[0]))
    found.differences.append(
        f"{name}: {len(changed)} of {len(before)} tensors, first {changed[0]} {first}"
    )


Raw = tuple[str, str, bytes]


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, Raw]]:
    """The notes of a safetensors file, and (dtype, shape, bytes) of each tensor by name."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    about = json.loads(header.pop("__metadata__", {}).get("fedglean", "{}"))
    tensors = {}
    for name in sorted(header):
        low, high = header[name]["data_offsets"]
        shape = str(header[name]["shape"])
        tensors[name] = (header[name]["dtype"], shape, content[start + low : start + high])
    return json.loads(about.get("notes", "{}")), tensors


def distance(old: Raw | None, new: Raw | None) -> str:
    if old is None or new is None:
        return "is new" if old is None else "is gone"
    kinds = {"F32": np.float32, "F64": np.float64, "I64": np.int64}
    if old[:2] != new[:2] or old[0] not in kinds:
        return f"of {old[0]} {old[1]} became {new[0]} {new[1]}"
    before, after = np.frombuffer(old[2], kinds[old[0]]), np.frombuffer(new[2], kinds[new[0]])
    return f"by up to {abs(before - after).max():.1e} of {abs(before).max():.1e}"
