"""What a branch keeps of one run, on its own disk, by version.

The hub alone says which version counts: every order names the one to go on from. A new one is
written whole before its upload is sent, and counts only once an order names it. Until then the old
one stays, for the upload may be refused, and the hub may be killed and go back to its last
checkpoint.
"""

import re
from collections.abc import Callable
from pathlib import Path

from fedglean.errors import StorageError
from fedglean.federation.plan import Unable
from fedglean.models.nets import NetKind, net_of
from fedglean.sealed import make_folder, pack, unpack, write_whole
from fedglean.tree import Tree

_RUN = re.compile(r"[0-9a-f]{8,64}")
_VERSION = re.compile(r"[0-9]{1,9}-[0-9]{1,9}")


def version_of(round: int, ask: int) -> str:
    return f"{round}-{ask}"


def _place(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split("-"))


class States:
    """The versions of one branch in one run."""

    def __init__(self, folder: Path, run: str, branch: int) -> None:
        if not _RUN.fullmatch(run):
            raise StorageError("a run is named by hexadecimal digits")
        self.folder = folder / run / str(branch)

    def load(self, version: str, net: Callable[[str], NetKind] = net_of) -> Tree:
        """The state of that version, if there is any; `net` is what models' names mean."""
        if not version:
            return None
        path = self._path(version)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise Unable(
                f"it has lost its state {version}, from which the run continues"
            ) from error
        return unpack(content, path, net)[0]

    def put(self, version: str, state: Tree) -> None:
        make_folder(self.folder)
        write_whole(self._path(version), pack(state))

    def settle(self, *versions: str) -> None:
        """Nobody will ask for any older than the newest of these, but for these themselves.

        Newer ones stay: a process that Flower's node left behind may finish an old order after
        newer ones.
        """
        keep = {_place(version) for version in versions if version}
        for path in self.folder.glob("state-*.safetensors"):
            there = _place(path.stem.removeprefix("state-"))
            if there not in keep and there < max(keep, default=there):
                path.unlink(missing_ok=True)

    def _path(self, version: str) -> Path:
        if not _VERSION.fullmatch(version):
            raise StorageError(
                f"a version is a round and the number of an ask, not '{version[:40]}'"
            )
        return self.folder / f"state-{version}.safetensors"
