"""The gate: a bad upload is refused with its reason, and as good as never sent."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedglean import tree
from fedglean.data.federation import Federation
from fedglean.engine.batches import Setting
from fedglean.engine.clients import Clients, Deliver
from fedglean.engine.loop import Loop
from fedglean.engine.placement import Exchanger, Here
from fedglean.errors import RoundError
from fedglean.exchange.exchange import Exchange
from fedglean.exchange.gate import Admitted, Envelope, Gate, needed
from fedglean.exchange.states import ClientStates
from fedglean.inputs.images import Images
from fedglean.inputs.views import Recipe
from fedglean.losses import cross_entropy
from fedglean.method import Ask, Batch, Declared, Expect, Me, Stream, Train, Upload
from fedglean.models import Architecture, Model
from fedglean.optimiser import SGD
from fedglean.randomness import bits
from fedglean.runs.config import configure
from fedglean.runs.experiment import prepare
from fedglean.runs.folder import Progress
from fedglean.runs.rounds import play_round
from fedglean.testing.engines import with_delivery
from fedglean.tree import Record
from fedglean.uploads import Refusal, Reply

MLP = Architecture("mlp", (1, 2, 2), 3, width=0.001)
MODEL = MLP.initial(1)
WEIGHT = "output.weight"
CLIENT = 2
COUNTS = (3, 5, 4, 6, 2)


def loss(model: Model, batch: Batch, frozen: Any) -> Tensor:
    return cross_entropy(model(batch.data.images), batch.data.label)


async def client(me: Me, message: Record) -> Upload | None:
    sgd = SGD(0.1, momentum=0.9)
    trained = await Train(
        message.model, {"data": Stream(me.labelled, batch=2)}, loss, sgd, epochs=1, memory=me.state
    )
    sums = torch.full((2,), float(len(me.labelled)), dtype=torch.float64)
    return Upload(
        model=trained.model,
        sums=sums,
        keep=trained.memory,
        report=trained.metrics,
        weight={"model": len(me.labelled)},
    )


def federation() -> Federation:
    store = (bits(2, (sum(COUNTS), 1, 2, 2)) & 255).to(torch.uint8)
    index, none = (
        torch.split(torch.arange(len(store)), list(COUNTS)),
        torch.zeros(0, dtype=torch.long),
    )
    parts = tuple(Images(store, part, part % 3) for part in index)
    return Federation(Images(store, none, none), parts, tuple(Images(store, none) for _ in COUNTS))


ASK = Ask(
    client,
    range(len(COUNTS)),
    {"model": MODEL},
    expect={"sums": Expect(torch.zeros(2, dtype=torch.float64), 10)},
)


def exchange(
    deliver: Callable[[Envelope], Iterable[Envelope]], kept: ClientStates, quorum: float = 0.5
) -> Reply:
    executor = Loop(Setting(Recipe((0.5,), (0.5,), flip=False, pad=0)))
    clients = Clients(federation(), executor, deliver=deliver)
    exchanger = Exchanger(Here(clients), len(COUNTS), block=2, quorum=quorum)
    return exchanger.exchange(Exchange(ASK, 1, 0, 7), kept)[0]


def with_leaf(upload: Upload, change: Callable[[Tensor], Tensor], **other: Any) -> Upload:
    model = upload.trees["model"]
    changed = model.with_parameters({**model.parameters, WEIGHT: change(model.parameters[WEIGHT])})
    return renewed(upload, model=changed, **other)


def renewed(upload: Upload, weight: Any = None, report: Any = None, **trees: Any) -> Upload:
    return Upload(
        weight=upload.all_weights if weight is None else weight,
        keep=upload.keep,
        report=upload.report if report is None else report,
        **{**upload.trees, **trees},
    )


def first_entry(value: float) -> Callable[[Tensor], Tensor]:
    def change(leaf: Tensor) -> Tensor:
        leaf = leaf.clone()
        leaf[0, 0] = value
        return leaf

    return change


def without_a_parameter(upload: Upload) -> Upload:
    parameters = dict(upload.trees["model"].parameters)
    del parameters[WEIGHT]
    return renewed(upload, model=Model(MLP, parameters))


def with_another_parameter(upload: Upload) -> Upload:
    return renewed(
        upload, model=Model(MLP, {**upload.trees["model"].parameters, "trojan": torch.zeros(1)})
    )


def weighted(value: Any) -> Callable[[Upload], Upload]:
    return lambda upload: renewed(upload, weight={"model": value})


def weight_tree(entry: float) -> Callable[[Upload], Upload]:
    return lambda upload: renewed(
        upload, weight={"model": tree.map(lambda leaf: leaf * 0 + entry, MODEL)}
    )


#: What is wrong with the upload, and a part of the reason that must be given.
BAD: dict[str, tuple[Callable[[Upload], Any], str]] = {
    "nan": (
        lambda u: with_leaf(u, first_entry(math.nan)),
        "'model' at output.weight is not finite",
    ),
    "infinite": (
        lambda u: with_leaf(u, first_entry(math.inf)),
        "'model' at output.weight is not finite",
    ),
    "huge": (lambda u: with_leaf(u, first_entry(1e30)), "'model' moved by 1e+30, more than"),
    "far": (lambda u: with_leaf(u, first_entry(1e4)), "'model' moved by 1e+04, more than"),
    "one number": (
        lambda u: with_leaf(u, lambda _: torch.zeros(1)),
        r"has shape (1,), expected (3, 5)",
    ),
    "five numbers": (
        lambda u: with_leaf(u, lambda _: torch.zeros(5)),
        "has shape (5,), expected (3, 5)",
    ),
    "transposed": (
        lambda u: with_leaf(u, lambda leaf: leaf.T),
        "has shape (5, 3), expected (3, 5)",
    ),
    "integers": (
        lambda u: with_leaf(u, lambda leaf: leaf.long()),
        "is torch.int64, expected torch.float32",
    ),
    "booleans": (
        lambda u: with_leaf(u, lambda leaf: leaf > 0),
        "is torch.bool, expected torch.float32",
    ),
    "double precision": (
        lambda u: with_leaf(u, lambda leaf: leaf.double()),
        "is torch.float64, expected",
    ),
    "weight below nought": (weighted(-15), "weight -15 of 'model' is outside (0, 4]"),
    "weight of a million millions": (weighted(1e12), "weight 1e+12 of 'model' is outside (0, 4]"),
    "weight nan": (weighted(math.nan), "weight nan of 'model' is outside (0, 4]"),
    "weight infinite": (weighted(math.inf), "of 'model' is outside (0, 4]"),
    "weight nought": (weighted(0), "weight 0 of 'model' is outside (0, 4]"),
    "weight one more than declared": (weighted(5), "weight 5 of 'model' is outside (0, 4]"),
    "weight too long for a float": (weighted(10**400), "of 'model' is outside (0, 4]"),
    "weight too long for a text": (weighted(10**5000), "of 'model' is outside (0, 4]"),
    "weight a truth": (
        weighted(True),
        "weight of 'model' is neither a number nor a tree of its shape",
    ),
    "weight a text": (
        weighted("4"),
        "weight of 'model' is neither a number nor a tree of its shape",
    ),
    "weight a tensor": (
        weighted(torch.ones(3)),
        "weight of 'model' is neither a number nor a tree of its shape",
    ),
    "weight tree above": (weight_tree(5.0), "weight of 'model' has an entry outside [0, 4]"),
    "weight tree below": (weight_tree(-1.0), "weight of 'model' has an entry outside [0, 4]"),
    "weight tree nan": (weight_tree(math.nan), "weight of 'model' has an entry outside"),
    "parameter missing": (without_a_parameter, "'model' lacks output.weight"),
    "parameter more": (with_another_parameter, "'model' has a part that was not asked for: trojan"),
    "name unknown": (
        lambda u: renewed(u, optimiser=MODEL),
        "unknown name 'optimiser', asked for was model, sums",
    ),
    "name without tensors": (
        lambda u: renewed(u, model="all mine"),
        "'model' is a str without tensors",
    ),
    "nothing in it": (lambda u: Upload(), "empty: no name was uploaded"),
    "a dictionary": (lambda u: {"model": MODEL}, "not an upload but a dict"),
    "nothing at all": (lambda u: None, "not an upload but a NoneType"),
    "report infinite": (
        lambda u: renewed(u, report={"loss": -math.inf}),
        "reported 'loss' is not a finite number",
    ),
    "report nan": (
        lambda u: renewed(u, report={"loss": math.nan}),
        "reported 'loss' is not a finite number",
    ),
    "report a text": (
        lambda u: renewed(u, report={"loss": "low"}),
        "reported 'loss' is not a finite number",
    ),
    "report no mean": (
        lambda u: renewed(u, report={"loss": 1.7e308}),
        "reported 'loss' is not a finite number up to",
    ),
    "many reports": (
        lambda u: renewed(u, report={str(k): 1.0 for k in range(1001)}),
        "reports more than 1000 numbers",
    ),
    "report of a long name": (
        lambda u: renewed(u, report={"x" * 101: 1.0}),
        "a name of more than 100 letters",
    ),
    "report too long": (
        lambda u: renewed(u, report={"loss": 10**400}),
        "reported 'loss' is not a finite number",
    ),
    "expected entry too large": (
        lambda u: renewed(u, sums=torch.tensor([0.0, -41.0], dtype=torch.float64)),
        "'sums' has an entry of -41, which should be from -40 to 40",
    ),
    "expected entry nan": (
        lambda u: renewed(u, sums=torch.tensor([0.0, math.nan], dtype=torch.float64)),
        "'sums' at value is not finite",
    ),
}


def leaves_of(reply: Reply, kept: ClientStates) -> dict[str, Tensor]:
    sums = {"mean": reply.mean("model"), "sum": reply.sum("sums")}
    return tree.named(
        {**sums, **{f"client {number}": kept.states[number] for number in sorted(kept.states)}}
    )


def kept_by(client: int, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: leaf for name, leaf in leaves.items() if name.startswith(f"client {client}/")}


def played(deliver: Callable[[Envelope], Iterable[Envelope]]) -> tuple[Reply, dict[str, Tensor]]:
    """The exchange from a state in which every client already kept something."""
    kept = ClientStates()
    exchange(lambda envelope: [envelope], kept)
    reply = exchange(deliver, kept)
    return reply, leaves_of(reply, kept)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def lost(envelope: Envelope) -> list[Envelope]:
    return [] if envelope.client == CLIENT else [envelope]


@pytest.fixture(scope="module")
def without_it() -> tuple[Reply, dict[str, Tensor]]:
    return played(lost)


@pytest.fixture(scope="module")
def undisturbed() -> tuple[Reply, dict[str, Tensor]]:
    return played(lambda envelope: [envelope])


def test_an_upload_that_is_lost_makes_a_difference(without_it: Any, undisturbed: Any) -> None:
    assert undisturbed[0].answered == [0, 1, 2, 3, 4] and without_it[0].answered == [0, 1, 3, 4]
    assert not same(without_it[1], undisturbed[1])


def test_a_client_goes_on_from_what_it_kept_unless_its_upload_was_lost(
    without_it: Any, undisturbed: Any
) -> None:
    kept = ClientStates()
    before = leaves_of(exchange(lambda envelope: [envelope], kept), kept)
    assert kept.changed == set(range(5))
    for number in range(5):
        assert kept_by(number, before) and not same(
            kept_by(number, undisturbed[1]), kept_by(number, before)
        )
        assert same(kept_by(number, without_it[1]), kept_by(number, before)) == (number == CLIENT)


@pytest.mark.parametrize("wrong", BAD)
def test_a_bad_upload_is_refused_and_the_round_is_as_without_it(
    wrong: str, without_it: Any
) -> None:
    spoil, reason = BAD[wrong]

    def poisoned(envelope: Envelope) -> list[Envelope]:
        return [
            replace(envelope, upload=spoil(envelope.upload))
            if envelope.client == CLIENT
            else envelope
        ]

    reply, leaves = played(poisoned)
    assert [(refusal.round, refusal.client) for refusal in reply.refused] == [(1, CLIENT)]
    assert reason in reply.refused[0].reason
    assert same(leaves, without_it[1])
    assert reply.report == without_it[0].report and reply.received == without_it[0].received


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"round": 0}, "stale: it answers round 0, exchange 0"),
        ({"round": 2}, "stale: it answers round 2, exchange 0"),
        ({"ask": 1}, "stale: it answers round 1, exchange 1"),
        ({"client": 99}, "this client was not asked"),
        ({"client": 0}, "this client answers in another block"),
    ],
)
def test_an_upload_with_a_wrong_address_is_refused(
    change: dict[str, int], reason: str, without_it: Any
) -> None:
    reply, leaves = played(lambda e: [replace(e, **change) if e.client == CLIENT else e])
    assert [refusal.reason for refusal in reply.refused] == [reason] and same(leaves, without_it[1])


def test_a_client_of_another_block_is_not_let_in_here() -> None:
    gate = Gate(1, 0, Ask(client, range(5), {"model": MODEL}), {CLIENT: Declared(3, 0)})
    outcome = gate.admit(Envelope(1, 0, CLIENT + 1, Upload(model=MODEL)))
    assert isinstance(outcome, Refusal) and outcome.reason == "this client answers in another block"
    assert isinstance(gate.admit(Envelope(1, 0, CLIENT, Upload(model=MODEL))), Admitted)


def test_an_upload_that_comes_twice_counts_once(undisturbed: Any) -> None:
    reply, leaves = played(lambda envelope: [envelope, envelope])
    assert {refusal.reason for refusal in reply.refused} == {
        "duplicate: this client has answered already"
    }
    assert len(reply.refused) == 5 and same(leaves, undisturbed[1])


def test_a_good_upload_after_a_refused_one_is_admitted(undisturbed: Any) -> None:
    reply, leaves = played(lambda envelope: [replace(envelope, upload="garbled"), envelope])
    assert len(reply.refused) == 5 and same(leaves, undisturbed[1])


def test_too_few_usable_uploads_end_the_round_with_their_reasons() -> None:
    def mostly_bad(envelope: Envelope) -> list[Envelope]:
        return [
            replace(envelope, upload=BAD["nan"][0](envelope.upload))
            if envelope.client
            else envelope
        ]

    with pytest.raises(
        RoundError,
        match=r"round 1: only 1 of 5 .* quorum is 50 % \('model' at output.weight is not",
    ):
        exchange(mostly_bad, ClientStates())
    assert exchange(mostly_bad, ClientStates(), quorum=0.2).answered == [0]


def test_a_run_that_diverged_is_told_so_and_not_once_for_each_client() -> None:
    def far(envelope: Envelope) -> Iterable[Envelope]:
        sent = envelope.upload.trees["model"]
        moved = tree.map(lambda leaf: leaf + 1e6 * (1 + envelope.client), sent)
        yield replace(envelope, upload=Upload(model=moved, weight=1))

    told = r"('model' moved by \S+, more than the 280 allowed; ){3}and 2 more; .* learning rate"
    with pytest.raises(RoundError, match=told):
        exchange(far, ClientStates())


def test_silence_from_all_is_told_from_refusal() -> None:
    with pytest.raises(RoundError, match=r"only 0 of 5 clients .* \(no answer\)"):
        exchange(lambda envelope: [], ClientStates())


def gate(ask: Ask = ASK) -> Gate:
    return Gate(1, 0, ask, {number: Declared(count, 0) for number, count in enumerate(COUNTS)})


def test_an_admitted_upload_takes_the_shape_of_what_was_asked_for() -> None:
    loose = Upload(
        model={name: value + 1 for name, value in MODEL.parameters.items()},
        weight=2,
        report={"loss": 1},
    )
    admitted = gate().admit(Envelope(1, 0, CLIENT, loose))
    assert isinstance(admitted, Admitted)
    taken = admitted.as_asked()
    assert isinstance(taken.trees["model"], Model)
    assert torch.equal(taken.trees["model"].parameters[WEIGHT], MODEL.parameters[WEIGHT] + 1)
    assert taken.weight("model") == 2 and taken.report == {"loss": 1}


def test_what_differs_by_client_is_judged_by_that_clients_own_message() -> None:
    own = {0: {"model": tree.map(lambda leaf: leaf + 1e6, MODEL)}}
    judge = gate(replace(ASK, each=own))
    near = Upload(model=own[0]["model"])
    assert isinstance(judge.admit(Envelope(1, 0, 0, near)), Admitted)
    assert isinstance(judge.admit(Envelope(1, 0, 1, near)), Refusal)


def test_a_running_variance_is_judged_by_its_root_and_never_negative() -> None:
    model = Architecture("cnn", (1, 8, 8), 3, width=0.25, norm="running").initial(1)
    name = next(iter(model.statistics)).replace(".mean", ".variance")

    def judged(value: float) -> Admitted | Refusal:
        sent = replace(
            model,
            statistics={**model.statistics, name: torch.full_like(model.statistics[name], value)},
        )
        gate = Gate(1, 0, Ask(client, [CLIENT], {"model": model}), {CLIENT: Declared(3, 0)})
        return gate.admit(Envelope(1, 0, CLIENT, Upload(model=sent)))

    # Weights that grow a hundredfold make a variance grow ten thousandfold.
    assert isinstance(judged(1e5), Admitted)
    far, negative = judged(1e12), judged(-1e-3)
    assert isinstance(far, Refusal) and "'model' moved by" in far.reason
    assert (
        isinstance(negative, Refusal)
        and negative.reason == f"'model' at {name} is a negative variance"
    )


def test_a_client_with_nothing_declared_may_still_weigh_one() -> None:
    empty = Gate(1, 0, ASK, dict.fromkeys(range(5), Declared(0, 0)))
    assert isinstance(empty.admit(Envelope(1, 0, 0, Upload(model=MODEL, weight=1.0))), Admitted)
    assert isinstance(empty.admit(Envelope(1, 0, 1, Upload(model=MODEL, weight=1.5))), Refusal)


@pytest.mark.parametrize("method", ["fed-shvr", "semifl"])
def test_a_whole_round_with_a_refused_upload_is_the_round_without_it(method: str) -> None:
    options: dict[str, dict[str, Any]] = {
        "semifl": {"active": 1.0, "threshold": 0.12, "hub_batch": 20, "client_batch": 50},
        "fed-shvr": {"labels": "each:10"},
    }
    experiment = prepare(configure(method, clients=4, rounds=2, epochs=1, **options[method]))

    def progress_with(deliver: Callable[[Envelope], Iterable[Envelope]]) -> Progress:
        disturbed = with_delivery(experiment, deliver)
        progress = Progress(0, experiment.start(), ClientStates(), [])
        play_round(experiment, progress, 1)
        play_round(disturbed, progress, 2)
        return progress

    def poisoned(envelope: Envelope) -> list[Envelope]:
        trees = envelope.upload.trees
        bad = Upload(
            **{name: tree.map(lambda leaf: leaf * math.nan, part) for name, part in trees.items()}
        )
        return [replace(envelope, upload=bad) if envelope.client == CLIENT else envelope]

    with_it, without = progress_with(poisoned), progress_with(lost)
    refused = with_it.history[1].pop("refused")
    assert {line["client"] for line in refused} == {CLIENT} and without.history[1].pop(
        "refused"
    ) == []
    assert same(tree.named(with_it.state), tree.named(without.state))
    assert same(tree.named(with_it.kept.states), tree.named(without.kept.states))
    timeless = {"seconds": 0, "phases": {}}
    assert with_it.history[1] | timeless == without.history[1] | timeless


def _spoilt(
    name: str, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
) -> Callable[..., Any]:
    """One client's upload of that name, changed."""

    def deliver(envelope: Envelope) -> list[Envelope]:
        sent = envelope.upload
        if envelope.client != CLIENT or name not in sent.trees:
            return [envelope]
        part = tree.rebuild(sent.trees[name], change(tree.named(sent.trees[name])))
        bad = Upload(weight=sent.all_weights, report=sent.report, **{**sent.trees, name: part})
        return [replace(envelope, upload=bad)]

    return deliver


def _less(ending: str, by: float) -> Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    return lambda leaves: {
        path: leaf - by if path.endswith(ending) else leaf for path, leaf in leaves.items()
    }


ALL = {"active": 1.0}
IMPOSSIBLE: dict[str, tuple[str, dict[str, Any], Callable[..., Any]]] = {
    "negative variances": ("semifl", ALL, _spoilt("model_sums", _less(".variance", 1e6))),
    "fewer images than none": ("semifl", ALL, _spoilt("model_sums", _less("images", 1e6))),
    "more images than there are": ("semifl", ALL, _spoilt("model_sums", _less("images", -1e3))),
    "negative running variances": (
        "fed-shvr",
        {"labels": "each:10", "model": "cnn", "norm": "running"},
        _spoilt("statistics", _less(".variance", 1e5)),
    ),
    "steps back": ("fednova", ALL | {"labels": "each:10"}, _spoilt("steps", _less("", 300))),
    "negative counts": (
        "cbafed",
        ALL | {"labels": "each:10", "warmup_rounds": 1},
        _spoilt("counts", _less("", 100)),
    ),
}


def first_round(method: str, deliver: Deliver, **options: Any) -> dict[str, Any]:
    """What is told of a round in which uploads go that way."""
    experiment = prepare(configure(method, clients=4, rounds=1, **options))
    disturbed = with_delivery(experiment, deliver)
    line = play_round(disturbed, Progress(0, disturbed.start(), ClientStates(), []), 1)
    assert line is not None
    return line


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_finite_numbers_that_no_images_give_are_refused(case: str) -> None:
    method, options, deliver = IMPOSSIBLE[case]
    refused = first_round(method, deliver, epochs=1, **options)["refused"]
    assert {line["client"] for line in refused} == {CLIENT}
    assert "which should be from" in refused[0]["reason"]


ONE_EACH: dict[str, dict[str, Any]] = {
    "fedrgd": {"active": 1.0, "steps": 2},
    "scaffold": {"active": 1.0, "labels": "each:10", "epochs": 1},
    "vrl-sgd": {"labels": "each:10", "period": 2},
    "fedmatch": {"active": 1.0, "labels": "each:10", "epochs": 1},
    "fedmatch-semifl": {"active": 1.0, "threshold": 0.0, "epochs": 1},
    "fl2": {"active": 1.0, "pretraining": 0, "epochs": 1},
    "fedsgd-fixmatch": {"active": 1.0, "steps": 1},
    "heterofl-semifl": {"active": 1.0, "labels": "each:10", "epochs": 1},
}


@pytest.mark.parametrize("method", ONE_EACH)
def test_where_every_upload_counts_once_a_client_cannot_weigh_more(method: str) -> None:
    """Of a net without batch norm, whose statistics would be uploads that count once too."""

    def heavy(envelope: Envelope) -> list[Envelope]:
        sent = envelope.upload
        if envelope.client != CLIENT:
            return [envelope]
        return [replace(envelope, upload=Upload(weight=5.0, report=sent.report, **sent.trees))]

    refused = first_round(method, heavy, model="cnn", norm="group", **ONE_EACH[method])["refused"]
    assert {line["client"] for line in refused} == {CLIENT} and "weight 5" in refused[0]["reason"]


@pytest.mark.parametrize(
    ("method", "part"),
    [
        *(("proxyfl", "model"), ("proxyfl", "counts"), ("cbafed", "model"), ("cbafed", "counts")),
        *(("fedmatch", "sigma"), ("fedmatch", "psi"), ("fednova", "model"), ("fednova", "steps")),
        *(("scaffold", "model"), ("scaffold", "change")),
    ],
)
def test_an_upload_that_lacks_one_of_its_names_ends_no_round(method: str, part: str) -> None:
    options = {"labels": "each:10", "active": 1.0, "epochs": 1, "images": 200, "quorum": 1.0}
    own: dict[str, Any] = {"proxyfl": {"tuning_epochs": 1}, "cbafed": {"warmup_epochs": 1}}.get(
        method, {}
    )

    def lacking(envelope: Envelope) -> list[Envelope]:
        sent = envelope.upload
        trees = {
            name: tree
            for name, tree in sent.trees.items()
            if name != part or envelope.client != CLIENT
        }
        return [
            replace(envelope, upload=Upload(weight=sent.all_weights, report=sent.report, **trees))
        ]

    assert first_round(method, lacking, **options, **own)["answered"] == 4


def test_a_quorum_is_a_number_of_clients_not_a_hair_more() -> None:
    assert [needed(0.55, 100), needed(0.07, 100), needed(0.5, 5), needed(0.0, 3)] == [55, 7, 3, 0]


def test_a_client_cannot_fill_the_log_with_its_reason() -> None:
    gate = Gate(1, 0, ASK, {CLIENT: Declared(3, 0)})
    outcome = gate.admit(Envelope(1, 0, CLIENT, Upload(**{"x" * 100_000: MODEL})))
    assert isinstance(outcome, Refusal)
    assert outcome.reason == ("unknown name '" + "x" * 1000)[:300]


@pytest.mark.parametrize("what", [0.0, {}, {"scale": torch.zeros(()), "steps": 0}, None])
def test_an_expectation_without_tensors_is_refused_for_its_upload_would_never_be_counted(
    what: Any,
) -> None:
    with pytest.raises(TypeError, match="Expect needs a tree of tensors"):
        Expect(what)
