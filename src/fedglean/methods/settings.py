"""What many methods declare alike: defaults, what they need, settings with bounds and help."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedglean.errors import ConfigError
from fedglean.method import Declared, Method
from fedglean.method import setting as setting
from fedglean.optimiser import Optimiser


def iid(labels: str, clients: int = 10) -> dict[str, Any]:
    """A split in which clients are alike but for their labels."""
    return {"partition": "iid", "labels": labels, "clients": clients}


#: Clients that differ as widely as they do where averaging is studied.
SKEWED = {"partition": "dirichlet:0.1", "labels": "all", "clients": 10}
#: Fed-SHVR's: everybody's labels are of other classes than the rest of their images.
MISMATCH = iid("mismatch-digits:6")
MLP = {"name": "mlp"}


def on_a_laptop(
    rounds: int,
    split: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """`defaults` of a method: a configuration that shows within minutes what it can do."""
    parts = {"rounds": rounds, "split": split, "model": model, "settings": settings}
    return {name: part for name, part in parts.items() if part}


def needs_labels_at_clients(title: str, instead: str = "hub-only") -> Any:
    """The `check` of a method that nobody but clients with labels can teach."""

    def check(self: Method, clients: Sequence[Declared], hub_labels: int) -> None:
        if not any(client.labelled for client in clients):
            raise ConfigError(
                f"{title} needs clients with labels; '{instead}' works with labels at the hub alone"
            )

    return check


def needs_labels_at_hub(title: str, instead: str) -> Any:
    """The `check` of a method that the hub's labels teach."""

    def check(self: Method, clients: Sequence[Declared], hub_labels: int) -> None:
        if hub_labels == 0:
            raise ConfigError(
                f"{title} needs labelled images at the hub; '{instead}' works with labels at the "
                "clients"
            )

    return check


class WithSGD:
    """`sgd`: the run's optimiser, with what a method's settings say of momentum, decay and clip."""

    optimiser: Callable[..., Optimiser]
    rate: float
    momentum: float = 0.0
    nesterov: bool = False
    decay: float = 0.0
    clip: float | None = None

    @property
    def sgd(self) -> Optimiser:
        nesterov = self.nesterov and self.momentum > 0
        return self.optimiser(self.rate, self.momentum, nesterov, self.decay, self.clip)


def share(default: float, help: str) -> Any:
    """A number from 0 to 1."""
    return setting(default, help, low=0, high=1)


def active(default: float) -> Any:
    return share(default, "share of the clients that take part in a round")


def threshold(default: float) -> Any:
    return share(default, "confidence from which a pseudo-label is trusted")


def stragglers() -> Any:
    return share(0.0, "share of the visits that end after a random number of the epochs")


def rate(default: float, help: str = "learning rate") -> Any:
    return setting(default, help, low=0)


def annealed_rate(default: float) -> Any:
    return rate(default, "learning rate of round 1, annealed by a cosine over the rounds")


def annealed() -> Any:
    return setting(False, "anneal the rate by a cosine over the rounds")


def momentum(default: float, help: str = "momentum, reset at every visit") -> Any:
    return setting(default, help, low=0, high=0.999)


def global_momentum(default: float, high: float = 0.99) -> Any:
    help = "momentum of the hub's step towards the clients' mean"
    return setting(default, help, low=0, high=high)


def decay(default: float) -> Any:
    return setting(default, "weight decay", low=0)


def clip(default: float | None, help: str = "largest norm of a gradient") -> Any:
    return setting(default, help, low=1e-6)


def view(default: str) -> Any:
    return setting(default, "how images are seen in training", names="VIEWS")


def epochs_of_all(default: int) -> Any:
    help = "local epochs; each is as many steps as labelled batches fit into all images"
    return setting(default, help, low=1)


def labelled_batch(default: int) -> Any:
    return setting(default, "batch size of labelled images", low=1)


def unlabelled_batch(default: int) -> Any:
    return setting(default, "batch size of all images, seen without labels", low=1)


def temperature(default: float) -> Any:
    return setting(default, "sharpening of a guess; 1 leaves it as it is", low=1e-3)


def concentration(default: float, of: str = "ratio") -> Any:
    help = f"both parameters of the Beta distribution of the {of}"
    return setting(default, help, low=0.01, high=1)
