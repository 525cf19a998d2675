"""What Flower leaves open on the hub's port, and at a branch, is shut."""

import asyncio
import io
import zipfile
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.superlink.main import create_app

from fedglean.federation.flower.guarded import APP, for_nodes, with_our_app

HUB, BRANCH = "10.0.0.7", "10.0.0.8"


def status(path: str, whence: str) -> int:
    """What a SuperLink answers to an empty request from that address."""
    sent: list[Any] = []
    about = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "https",
        "query_string": b"",
    }
    scope = {**about, "path": path, "raw_path": path.encode(), "root_path": "", "headers": []}

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(part: Any) -> None:
        sent.append(part)

    app = for_nodes(create_app())
    asyncio.run(app({**scope, "client": (whence, 40000), "server": (HUB, 8000)}, receive, send))
    return int(sent[0]["status"])


@pytest.mark.parametrize(
    "path", ["/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task"]
)
def test_runs_are_started_and_worked_on_from_the_hubs_own_machine_alone(path: str) -> None:
    assert status(path, BRANCH) == 403
    assert status(path, HUB) == 415, "Flower itself lets everybody in, and misses the content"


def test_nodes_are_served_wherever_they_are() -> None:
    assert status("/v1/fleet/pull-messages", BRANCH) == 415


def packed(**files: str) -> bytes:
    """As Flower packs an app."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


SEAL = {".info/CONTENT": "pyproject.toml,e5d6,3024"}


@pytest.mark.parametrize(
    "theirs",
    [
        packed(**{"pyproject.toml": APP, "fedglean/federation/flower/apps.py": "evil", **SEAL}),
        packed(
            **{
                "pyproject.toml": APP.replace(
                    "fedglean.federation.flower.apps:client_app", "os:abort"
                ),
                **SEAL,
            }
        ),
        packed(**SEAL),
    ],
)
def test_a_branch_runs_no_app_but_the_packages(theirs: bytes) -> None:
    pulled = with_our_app(lambda get_fab: get_fab("hash", 1).content)
    ours = packed(**{"pyproject.toml": APP.replace("[]", "[\n]"), **SEAL})
    assert pulled(get_fab=lambda *which: SimpleNamespace(content=ours)) == ours
    with pytest.raises(SystemExit, match="not fedglean's"):
        pulled(get_fab=lambda *which: SimpleNamespace(content=theirs))
