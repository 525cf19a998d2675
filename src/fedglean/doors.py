"""The doors: what a package or a file of a user's own may bring, each of them a few functions.

docs/howto/doors.md describes them; the folder `examples` has one of each.

* `Method`: what the hub and its clients do in a round; table METHODS.
* `Optimiser`: one step of training, as two pure functions; table OPTIMISERS.
* `Aggregate`: how uploads become one; table AGGREGATES. It adds `Weighted` uploads and gives
  `Combined`.
* `Executor`: how a block of clients is answered on one device; table EXECUTORS. It is made of a
  `Setting`, runs each `Party` and answers each `Call`.
* `Placement`: where blocks of clients run; table PLACEMENTS. It is made of `Clients`, is given an
  `Exchange` and gives a `BlockResult` a block.
* `Tracker`: what hears of a run; table TRACKERS.

`OptimiserKind` and its like are rows of these tables: what makes the thing, and a summary.
"""

from fedglean.engine.batches import Setting
from fedglean.engine.clients import Clients
from fedglean.engine.executor import Executor, ExecutorKind
from fedglean.engine.placement import Placement, PlacementKind
from fedglean.engine.task import Call, Party
from fedglean.exchange.aggregate import Aggregate, AggregateKind, Weighted
from fedglean.exchange.exchange import BlockResult, Exchange
from fedglean.exchange.states import ClientStates
from fedglean.method import Method
from fedglean.optimiser import Optimiser, OptimiserKind
from fedglean.report.tracker import Tracker, TrackerKind
from fedglean.uploads import Combined

__all__ = [
    "Aggregate",
    "AggregateKind",
    "BlockResult",
    "Call",
    "ClientStates",
    "Clients",
    "Combined",
    "Exchange",
    "Executor",
    "ExecutorKind",
    "Method",
    "Optimiser",
    "OptimiserKind",
    "Party",
    "Placement",
    "PlacementKind",
    "Setting",
    "Tracker",
    "TrackerKind",
    "Weighted",
]
