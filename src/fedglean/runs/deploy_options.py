"""How a hub and a branch are started: options, and what a run folder keeps of them."""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Self

from fedglean import schema
from fedglean.errors import UNREADABLE, ConfigError, StorageError
from fedglean.schema import setting
from fedglean.sealed import write_whole


class Address(NamedTuple):
    host: str
    port: int

    @classmethod
    def read(cls, text: str) -> Self:
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            how = "write it as host:port, such as hub.example.org:8000"
            raise ConfigError(f"'{text}' is not an address; {how}")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def near(self) -> "Address":
        """How this machine itself reaches what listens there."""
        return Address("127.0.0.1", self.port) if self.host == "0.0.0.0" else self


@dataclass(frozen=True)
class HubOptions:
    """`keys` is a folder that `make_hub_keys` made, None for a federation without any protection.

    `admit` are the branches' public keys by their numbers.
    """

    images: Path = setting(MISSING, "The hub's images, in hub/CLASS and optionally test/CLASS")
    branches: int = setting(MISSING, "How many branches there are; they are numbered from 0", low=0)
    out: Path = setting(MISSING, "The run folder; a run that is already there is continued")
    listen: str = setting("0.0.0.0:8000", "The address at which branches reach the hub")
    keys: Path | None = setting(None, "The folder that 'fedglean deploy keys' made")
    admit: dict[int, Path] = field(default_factory=dict)
    deadline: float = setting(3600.0, "Seconds that a branch has for each answer", low=1)
    grace: float = setting(
        600.0, "Seconds that the others still have once a quorum has answered", low=0
    )
    gathering: float = setting(
        600.0, "Seconds to wait for all branches at the start, and for a quorum later", low=0
    )

    @property
    def address(self) -> Address:
        return Address.read(self.listen)

    @staticmethod
    def path(out: Path) -> Path:
        """Where a run folder has them; only that of a federation has any."""
        return out / "flower" / "options.json"

    @classmethod
    def of(cls, out: Path) -> Self | None:
        """Those with which the run in a folder was started, if the command line started it."""
        path = cls.path(out)
        if not path.exists():
            return None
        try:
            return schema.read(cls, json.loads(path.read_bytes()))
        except (*UNREADABLE, ConfigError) as error:
            how = "start the hub with all its options again"
            raise StorageError(f"{path} cannot be read ({error}); {how}") from error

    def save(self) -> None:
        """Paths are written in full: whoever reads them may work in another folder."""
        whole = replace(
            self,
            images=self.images.resolve(),
            out=self.out.resolve(),
            keys=self.keys and self.keys.resolve(),
            admit={number: path.resolve() for number, path in self.admit.items()},
        )
        write_whole(self.path(self.out), json.dumps(schema.write(whole), indent=1).encode())

    def command(self, *words: str, out: Path | str, asks_branches: bool = True) -> str:
        """What starts a hub like this one, for the method or configuration in `words`."""
        command = ["fedglean", "deploy", "hub", *words, "--images", self.images]
        command += ["--branches", self.branches if asks_branches else 0, "--out", out]
        if asks_branches:
            command += ["--listen", self.listen]
            for name in ("deadline", "grace", "gathering"):
                command += [f"--{name}", f"{getattr(self, name):g}"]
            command += ["--insecure"] if self.keys is None else ["--keys", self.keys]
            for number, path in self.admit.items():
                command += ["--admit", f"{number}={path}"]
        return shlex.join(map(str, command))


def read_admitted(texts: Sequence[str], branches: int) -> dict[int, Path]:
    """The branches' public keys, as `NUMBER=FILE` or as files in the order of their numbers."""
    found: dict[int, Path] = {}
    for place, text in enumerate(texts):
        named = re.fullmatch(r"(\d+)=(.+)", text)
        number, path = (int(named[1]), Path(named[2])) if named else (place, Path(text))
        if number >= branches:
            last = f"the last of {branches} branches is {branches - 1}"
            raise ConfigError(f"'--admit {text}' is for branch {number}, but {last}")
        if number in found:
            what = f"'--admit {text}' is a second key for branch {number}"
            raise ConfigError(f"{what}; give one for each branch")
        found[number] = key_file(path)
    keys: list[list[bytes]] = []
    for path in found.values():
        key = path.read_bytes().split()[:2]
        if key in keys:
            how = "make a key for each with 'fedglean deploy keys'"
            raise ConfigError(f"{path} is given for two branches; {how}")
        keys.append(key)
    return found


def key_file(path: Path) -> Path:
    if not path.is_file():
        raise ConfigError(f"there is no {path}; 'fedglean deploy keys' makes keys and certificates")
    return path


@dataclass(frozen=True)
class BranchOptions:
    """What a branch's app is told; Flower passes it on as one line of text."""

    images: Path = setting(
        MISSING, "The branch's images; those in folders named after classes are labelled"
    )
    number: int = setting(
        MISSING, "This branch's number, which is its identity in the federation", low=0
    )
    state: Path = setting(MISSING, "The folder in which this branch keeps its state")
    name: str = setting("", "A name for people to read")
    device: str = setting("cpu", "Where this branch computes", choices=("auto", "cpu", "cuda"))
    use: Path | None = setting(None, "A Python file with methods or models of your own")

    def as_text(self) -> str:
        """`name=value` for each that is given, values as JSON."""
        words = []
        for name, value in schema.write(self).items():
            if value is None:
                continue
            if name in ("images", "state", "use"):
                value = str(Path(value).resolve())
            text = str(value)
            if not text.isprintable() or set(text) & set('"\\'):
                what = f"{text!r} holds a quote, a backslash or a control character"
                raise ConfigError(f"{what}, which Flower cannot pass on; rename it")
            words.append(f"{name}={json.dumps(value, ensure_ascii=False)}")
        return " ".join(words)
