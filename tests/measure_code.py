"""How the code reads, in numbers, room by room: a compass and no gate. `make compass` prints it.

    python tests/measure_code.py [FOLDER ...]

A folder is a package; by default the two of this checkout. Lines are those of the file, blank ones
too. The length of a function is from `def` to its last line, functions in it included.
"""

import ast
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

PACKAGES = [Path(__file__).parents[1] / "src" / name for name in ("fedglean", "fedglean_papers")]
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
HEAD = "| room | lines | functions | median | p90 | max | comprehensions | nested | conditional |"


@dataclass
class Room:
    lines: int = 0
    functions: list[int] = field(default_factory=list)
    comprehensions: int = 0
    nested: int = 0
    conditional: int = 0

    def read(self, path: Path) -> None:
        text = path.read_text("utf-8")
        self.lines += len(text.splitlines())
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, FUNCTIONS):
                self.functions.append((node.end_lineno or node.lineno) - node.lineno + 1)
            elif isinstance(node, COMPREHENSIONS):
                self.comprehensions += 1
                self.nested += is_nested(node)
            elif isinstance(node, ast.IfExp):
                self.conditional += 1

    def row(self, name: str) -> str:
        lengths = self.functions or [0]
        p90 = quantiles(lengths, n=10)[-1] if len(lengths) > 1 else lengths[0]
        counts = [self.comprehensions, self.nested, self.conditional]
        shares = [f"{1000 * count / self.lines:.1f}" for count in counts]
        cells = [name, self.lines, len(self.functions), f"{median(lengths):.0f}", f"{p90:.0f}"]
        return "| " + " | ".join(map(str, [*cells, max(lengths), *shares])) + " |"


def is_nested(node: ast.AST) -> bool:
    """With two `for`, or with a comprehension inside."""
    inside = [each for each in ast.walk(node) if isinstance(each, COMPREHENSIONS)]
    return len(inside) > 1 or len(node.generators) > 1  # type: ignore[attr-defined]


def measure(package: Path) -> tuple[dict[str, Room], Room]:
    rooms: dict[str, Room] = {}
    whole = Room()
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts
        name = parts[0] if len(parts) > 1 else "(top)"
        rooms.setdefault(name, Room()).read(path)
        whole.read(path)
    return rooms, whole


def main(packages: list[Path]) -> None:
    print(HEAD)
    print("|---" * (HEAD.count("|") - 1) + "|")
    for package in packages:
        rooms, whole = measure(package)
        print(whole.row(f"**{package.name}**"))
        for name, room in rooms.items():
            print(room.row(name))


if __name__ == "__main__":
    main([Path(each) for each in sys.argv[1:]] or PACKAGES)
