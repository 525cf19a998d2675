"""Letters as Flower's messages, over its grid."""

from collections.abc import Iterable, Mapping

from flwr.app import Array, ArrayRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedglean.federation.carrier import Node, Undelivered

RECORD = "fedglean"


class FlowerCarrier:
    def __init__(self, grid: Grid, pause: float = 0.5) -> None:
        self.grid, self.pause = grid, pause

    def nodes(self) -> Mapping[int, Node]:
        found = {}
        for each in self.grid.get_nodes():
            found[each.node_id] = Node(each.last_activated_at, each.public_key)
        return found

    def ask(self, questions: Mapping[int, bytes], seconds: float) -> Mapping[str, int]:
        letters = {node: {"question": _array(each)} for node, each in questions.items()}
        return self._send(letters, MessageType.QUERY, "who", seconds)

    def order(
        self, orders: Mapping[int, bytes], common: bytes, group: str, seconds: float
    ) -> Mapping[str, int]:
        letters, shared = {}, _array(common)
        for node, order in orders.items():
            letters[node] = {"order": _array(order), "common": shared}
        return self._send(letters, MessageType.TRAIN, group, seconds)

    def answers(self, name: str) -> Iterable[bytes | Undelivered]:
        """One by one: one that Flower cannot put together would take others of its call along."""
        try:
            return [_body(each) for each in self.grid.pull_messages([name])]
        except Exception as error:  # whatever Flower trips over
            why = f"its reply cannot be put together ({type(error).__name__})"
            return [Undelivered(why)]

    def _send(
        self, letters: Mapping[int, dict[str, Array]], kind: str, group: str, seconds: float
    ) -> dict[str, int]:
        messages = []
        for node, parts in letters.items():
            content = RecordDict({RECORD: ArrayRecord(parts)})
            messages.append(Message(content, node, kind, ttl=seconds, group_id=group))
        names = self.grid.push_messages(messages) if messages else []
        return {name: node for name, node in zip(names, letters, strict=False) if name}


def parts_of(message: Message) -> dict[str, bytes]:
    """The letters in a message, by name."""
    return {name: bytes(part.data) for name, part in message.content.array_records[RECORD].items()}


def reply_to(message: Message, content: bytes) -> Message:
    return Message(RecordDict({RECORD: ArrayRecord({"reply": _array(content)})}), reply_to=message)


def _array(content: bytes) -> Array:
    return Array("uint8", (len(content),), "fedglean", content)


def _body(reply: Message) -> bytes | Undelivered:
    if reply.has_error():
        return Undelivered(f"{reply.error.reason} (Flower's error {reply.error.code})"[:300])
    try:
        return parts_of(reply)["reply"]
    except Exception:
        return Undelivered("its reply holds no letter")
