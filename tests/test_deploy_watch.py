"""The supervisor of a branch sees when its node is of no more use."""

import inspect
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from flwr.app import Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import start_client_internal as supernode
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

from fedglean.federation.flower.start_branch import watch_node
from fedglean.federation.flower.watch import ANSWERED, TAKEN, Watch, is_at_work, take_work

MOMENT = "2026-11-19 20:00:00 "
HEADER = f"{MOMENT}INFO :      "
LOST = "Run ID 1 is not in `RUNNING` status. Ignoring message 310828436066."


@contextmanager
def node(
    script: str, folder: Path, silence: float
) -> Iterator[tuple["subprocess.Popen[bytes]", Watch]]:
    """A process that logs what a node would."""
    log = folder / "node.log"
    log.write_text(f"{HEADER}Ignoring message of an earlier start\n")
    with open(log, "ab") as file, Watch(folder, log, silence) as watch:
        process = subprocess.Popen(["bash", "-c", script], stdout=file)
        try:
            yield process, watch
        finally:
            process.kill()
            process.wait()


def test_what_a_node_logs_is_shown_until_it_ends(tmp_path: Path) -> None:
    said: list[str] = []
    script = f"echo '{MOMENT}{TAKEN}'; echo '{MOMENT}{ANSWERED}train'; exit 3"
    with node(script, tmp_path, 60) as (process, watch):
        assert watch_node(process, watch, said.append) == "the node ended with status 3"
    assert said == [TAKEN, f"{ANSWERED}train"]


def test_a_node_that_the_hub_does_not_let_in_is_said_to_have_a_reason(tmp_path: Path) -> None:
    script = "echo '[code: 1] Failed to activate SuperNode.'; exit 1"
    with node(script, tmp_path, 60) as (process, watch):
        assert "another node with that key" in watch_node(process, watch, lambda line: None)


@pytest.mark.parametrize("line", [LOST, "Failed to receive message 310828436066: gone"])
def test_a_node_that_dropped_a_message_is_started_again(line: str, tmp_path: Path) -> None:
    with node(f"echo '{line}'; exec sleep 60", tmp_path, 60) as (process, watch):
        assert "dropped a message" in watch_node(process, watch, lambda line: None)


def test_a_reply_that_nobody_wants_any_more_is_no_trouble(tmp_path: Path) -> None:
    with node(f"echo '{LOST.replace('message', 'reply message')}'; exit 0", tmp_path, 60) as (
        process,
        watch,
    ):
        assert watch_node(process, watch, lambda line: None) == "the node ended with status 0"


def test_a_node_with_a_message_that_nothing_works_on_is_started_again(tmp_path: Path) -> None:
    with node(f"echo '{TAKEN}'; exec sleep 60", tmp_path, 0.3) as (process, watch):
        assert "nothing is working on it" in watch_node(process, watch, lambda line: None)


def test_an_app_may_work_as_long_as_it_likes(tmp_path: Path) -> None:
    """It is at work until its process is gone, killed or not."""
    assert not is_at_work(tmp_path)
    code = "import sys, time; from pathlib import Path\n"
    code += "from fedglean.federation.flower.watch import take_work\n"
    code += "place = take_work(Path(sys.argv[1])); print('at work', flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE
    ) as app:
        assert app.stdout is not None and app.stdout.readline() == b"at work\n"
        with node(f"echo '{TAKEN}'; sleep 1; exit 0", tmp_path, 0.2) as (process, watch):
            assert watch_node(process, watch, lambda line: None) == "the node ended with status 0"
        assert is_at_work(tmp_path)
        app.kill()
        app.wait()
    assert not is_at_work(tmp_path)
    with take_work(tmp_path):
        assert is_at_work(tmp_path)


def test_flower_words_it_as_we_read_it() -> None:
    source = inspect.getsource(supernode)
    for words in (
        TAKEN,
        ANSWERED,
        "Failed to receive message %s",
        "Ignoring message %s",
        "Ignoring reply message %s",
    ):
        assert words in source


def test_flower_answers_out_of_step_once_it_dropped_a_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Why a node must be started again; where this fails, Flower has learnt better."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    store = InMemoryObjectStore()
    state = InMemoryNodeState(store)
    state.set_node_id(7)
    state.store_run(Run.create_empty(1))
    sent: list[str] = []

    def message(group: str) -> Message:
        made = Message(RecordDict(), 7, "train", ttl=100, group_id=group)
        made.metadata.__dict__["_message_id"] = made.object_id
        return made

    def pull(own: Message, confirm: object) -> int | None:
        contents = {name: each.deflate() for name, each in get_all_nested_objects(own).items()}
        receive = lambda: (own, get_object_tree(own))  # noqa: E731
        found = lambda run, name: contents[name]  # noqa: E731
        return supernode._pull_and_store_message(
            state, store, {}, receive, None, None, found, confirm, None
        )  # type: ignore[arg-type]

    def killed(run: int, name: str) -> None:
        """The hub is gone when it should hear of the message; the app has answered already."""
        supernode._insert_message(Message(RecordDict(), reply_to=old), state, store)
        raise RunNotRunningException

    def send(reply: Message, tree: object, seconds: float) -> tuple[set[str], str]:
        sent.append(reply.metadata.group_id)
        return set(), ""

    old, new = message("old"), message("new")
    assert pull(old, killed) is None and pull(new, lambda run, name: None) == 1
    supernode._push_messages(state, store, send, lambda *each: None)
    assert sent == [
        "old"
    ]  # and the loop goes on to wait for another message, not for the answer to this one
