"""Who takes part in a run, as federation.json in its folder has it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from fedglean import schema
from fedglean.data.federation import Federation
from fedglean.errors import UNREADABLE, ConfigError, StorageError
from fedglean.federation.letters import Declaration
from fedglean.method import Declared
from fedglean.sealed import write_whole


@dataclass
class Roster:
    """`run` is the run's name among branches.

    A branch that had not come when the run began is there with no images. Once it comes it is among
    the `late`: what it has counts from then on, but not for the normalisation of images, which
    stays what it was.
    """

    run: str
    branches: list[Declaration]
    late: list[Declaration] = field(default_factory=list)

    @classmethod
    def begin(
        cls, run: str, count: int, shape: list[int], found: Mapping[int, Declaration]
    ) -> Self:
        none = [0] * shape[0]
        branches = []
        for number in range(count):
            absent = Declaration(number, f"branch {number}", 0, 0, shape, none, none)
            branches.append(found.get(number, absent))
        return cls(run, branches)

    @classmethod
    def load(cls, out: Path) -> Self:
        try:
            return schema.read(cls, json.loads((out / "federation.json").read_bytes()))
        except (*UNREADABLE, ConfigError) as error:
            raise StorageError(
                f"{out} is not the run of a federation: its federation.json cannot be read "
                f"({error})"
            ) from error

    def save(self, out: Path) -> None:
        write_whole(out / "federation.json", json.dumps(schema.write(self), indent=1).encode())

    def join(self, declaration: Declaration, out: Path) -> None:
        """A branch has come late."""
        self.late.append(declaration)
        self.save(out)

    @property
    def declared(self) -> tuple[Declared, ...]:
        latest = {each.number: each for each in (*self.branches, *self.late)}
        return tuple(latest[each.number].declared for each in self.branches)

    @property
    def present(self) -> dict[int, Declared]:
        """Those that have come: a branch without any image is turned away."""
        return {number: each for number, each in enumerate(self.declared) if each.total}


@dataclass(frozen=True)
class RemoteFederation(Federation):
    """What the hub holds, and who takes part by now."""

    roster: Roster

    @property
    def declared(self) -> tuple[Declared, ...]:
        return self.roster.declared
