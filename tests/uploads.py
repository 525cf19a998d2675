"""Uploads for tests of what comes after the gate."""

from collections.abc import Mapping

from fedglean.exchange.aggregate import MEAN
from fedglean.exchange.exchange import BlockResult, Exchange, Intake
from fedglean.exchange.gate import Admitted, Form
from fedglean.method import Ask, Declared
from fedglean.tree import Tree, row
from fedglean.uploads import Reply, Upload


def admitted(upload: Upload) -> Admitted:
    """An upload as a gate passes it on that asked for just this."""
    forms = {name: Form(part) for name, part in upload.trees.items()}
    leaves = {name: form.leaves for name, form in forms.items()}
    return Admitted(upload, forms, leaves, {name: row(part) for name, part in leaves.items()})


def result_of(
    uploads: Mapping[int, Upload], images: Mapping[int, int] | int = 1, collect: str = "sum"
) -> BlockResult:
    """What a block comes to whose uploads a gate let pass."""
    count = max(uploads, default=-1) + 1
    counts = images if isinstance(images, Mapping) else dict.fromkeys(uploads, images)
    declared = [Declared(counts.get(client, 0), 0) for client in range(count)]
    ask = Ask(None, list(uploads), {}, collect=collect)  # type: ignore[arg-type]
    intake = Intake(Exchange(ask, 1, 0, 0), list(uploads), declared, MEAN, stretch=100.0)
    for client, upload in uploads.items():
        intake.add(client, admitted(upload))
    return intake.result


def reply_to_result(result: BlockResult, templates: Mapping[str, Tree]) -> Reply:
    """A reply with sums of these forms."""
    return Reply(
        MEAN.combine(result.kept),
        templates,
        answered=result.answered,
        uploads=result.uploads,
        reports=result.reports,
        received=result.received,
    )


def reply_of(uploads: Mapping[int, Upload], templates: Mapping[str, Tree]) -> Reply:
    """The reply to clients that sent these uploads."""
    return reply_to_result(result_of(uploads, collect="all"), templates)
