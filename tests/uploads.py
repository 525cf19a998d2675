"""Uploads for tests of what comes after the gate."""

from fedglean.exchange.gate import Admitted, Form
from fedglean.method import Upload
from fedglean.tree import row


def admitted(upload: Upload) -> Admitted:
    """An upload as a gate passes it on that asked for just this."""
    forms = {name: Form(part) for name, part in upload.trees.items()}
    leaves = {name: form.leaves for name, form in forms.items()}
    return Admitted(upload, forms, leaves, {name: row(part) for name, part in leaves.items()})
