"""What clients keep between their visits."""

from dataclasses import dataclass, field

from fedglean.tree import Tree


@dataclass
class ClientStates:
    """The clients' own states by number, and which of them changed since the last checkpoint."""

    states: dict[int, Tree] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)

    def put(self, client: int, state: Tree) -> None:
        self.states[client] = state
        self.changed.add(client)
