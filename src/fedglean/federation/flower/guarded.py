"""Flower's SuperLink and SuperNode, with two doors shut that Flower 1.41 and 1.42 leave open.

What is replaced in Flower is replaced in this file alone, at its end.

A SuperLink serves on one port the nodes, which TLS and keys guard, and whoever starts runs and
works on them, whom nothing guards: whoever reached the port could have the hub and every branch run
code of his own. Here only the hub's own machine is served so. And a SuperNode installs and runs
whatever app its hub sends; here only the one that this package knows, which names two functions of
the package and holds no code.
"""

import io
import os
import sys
import tomllib
import zipfile
from collections.abc import Callable
from typing import Any

#: No dependencies: with any, a SuperLink that was started otherwise would install them anew for
#: every run.
APP = """\
[project]
name = "fedglean-federation"
version = "1.0.0"
description = "fedglean's two apps; the package itself is installed on every machine."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedglean"

[tool.flwr.app.components]
serverapp = "fedglean.federation.flower.apps:server_app"
clientapp = "fedglean.federation.flower.apps:client_app"

[tool.flwr.app.config]
hub = ""
"""
LINK, NODE = "flower-superlink", "flower-supernode"


def for_nodes(app: Callable[..., Any]) -> Callable[..., Any]:
    """The SuperLink's service, of which other machines see what is for nodes.

    A connection from an address to itself comes from this machine, whatever address it has.
    """
    from starlette.responses import PlainTextResponse

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan" and not scope["path"].startswith("/v1/fleet/"):
            client, server = scope.get("client"), scope.get("server")
            if not client or not server or client[0] != server[0]:
                refuse = PlainTextResponse("for the hub's own machine alone", status_code=403)
                await refuse(scope, receive, send)
                return
        await app(scope, receive, send)

    return serve


def with_our_app(pull: Callable[..., Any]) -> Callable[..., Any]:
    """How a SuperNode takes a message, if the message's run is one of this package's app."""

    def pull_ours(*, get_fab: Callable[..., Any], **others: Any) -> Any:
        def get_ours(*which: Any) -> Any:
            fab = get_fab(*which)
            if not _is_ours(fab.content):
                raise SystemExit("the hub sent an app that is not fedglean's; it was not run")
            return fab

        return pull(get_fab=get_ours, **others)

    return pull_ours


def _is_ours(app: bytes) -> bool:
    """Whether nothing is in it but what the hub wrote, which Flower may have formatted anew."""
    with zipfile.ZipFile(io.BytesIO(app)) as archive:
        names = [each.filename for each in archive.infolist()]
        if names != ["pyproject.toml", ".info/CONTENT"]:
            return False
        return tomllib.loads(archive.read(names[0]).decode()) == tomllib.loads(APP)


def main() -> None:
    _, command, *_ = sys.argv
    del sys.argv[0]
    if command == LINK:
        from flwr.superlink import main as link
        from flwr.superlink.cli import flower_superlink

        # The server under it would believe anybody who says where he comes from.
        os.environ["FORWARDED_ALLOW_IPS"] = "127.0.0.1"
        make = link.create_app
        # Flower has no option to serve runs and nodes at different addresses.
        link.create_app = lambda *given: for_nodes(make(*given))  # type: ignore[assignment]
        flower_superlink()
    elif command == NODE:
        from flwr.supernode import start_client_internal as node
        from flwr.supernode.cli import flower_supernode

        # Flower's check of an app's signature needs its registry; there is no other place to look.
        node._pull_and_store_message = with_our_app(node._pull_and_store_message)
        flower_supernode()


if __name__ == "__main__":
    main()
