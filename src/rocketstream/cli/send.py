"""``rocketstream send TOPIC``: messages from the command line, a file or stdin."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click
from click import BadParameter

from rocketstream import limits
from rocketstream.admin.core.words import plural
from rocketstream.cli.commands import JSON_LINES, Whole, argument, looking, option, pairs, shows
from rocketstream.cli.commands import topic as topic_argument
from rocketstream.cli.output import json_line, print_line

if TYPE_CHECKING:
    from rocketstream import Message, MessageQueue, Producer, SendResult

_BATCH_MESSAGES = 50
"""A batch goes to one queue: small ones spread over all of them."""
_BATCH_BYTES = 512 * 1024
_DETAILS_MAX = 10
"""Results printed one by one; beyond, one line sums them up."""


@dataclass(frozen=True, slots=True)
class Template:
    """The fields every message of one call shares, all but the body."""

    topic: str
    tags: str | None
    keys: str | None
    properties: dict[str, str]
    delay_level: int

    def message(self, body: bytes) -> Message:
        """Return a message with this body."""
        from rocketstream import Message

        return Message(
            self.topic,
            body,
            tags=self.tags,
            keys=self.keys,
            properties=self.properties,
            delay_level=self.delay_level,
        )


@click.command(
    epilog="Examples: `rocketstream send orders '{\"id\": 7}' --tags new --keys order-7` · "
    "`rocketstream send orders --file orders.jsonl` · "
    "`rocketstream send pictures --file cat.png --whole` · "
    "`journalctl -o json | rocketstream send logs --stdin`"
)
@topic_argument
@argument("[BODY]", "The message; UTF-8 text.")
@option("--tags TEXT", "The tag.")
@option("--keys TEXT", "Keys to find it by; several with blanks between.")
@option("--property, -p NAME=VALUE", "User property; repeatable.", to="properties", multiple=True)
@option("--file, -f PATH", "Send each line as a message; - is stdin.", click.Path(path_type=Path))
@option("--stdin", "Send each line of stdin.")
@option("--whole", "Send the file or stdin as one message, byte for byte.")
@option("--queue ID|BROKER:ID", "Only to this queue.")
@option(
    "--delay-level N",
    "Deliver after the delay of this level: 1 to the broker's last level, usually 18.",
    Whole(0),
    default=0,
)
@option("--count N", "Send BODY this many times.", Whole(1), default=1)
@shows(help=JSON_LINES)
def send(
    topic: str,
    body: str | None,
    tags: str | None,
    keys: str | None,
    properties: tuple[str, ...],
    file: Path | None,
    stdin: bool,
    whole: bool,
    queue: str | None,
    delay_level: int,
    count: int,
    namesrv: str,
    as_json: bool,
) -> None:
    """Send messages: BODY, or one per line of --file or --stdin (blank lines are skipped)."""
    _check_tag(tags)
    template = Template(topic, tags, keys, pairs("--property", properties), delay_level)
    _check_source(body, file, stdin, count, whole)
    if delay_level:
        _check_delay_level(namesrv, topic, delay_level)
    from rocketstream import Producer

    with Producer("rocketstream-cli", namesrv_addr=namesrv) as producer:
        target = None if queue is None else _find_queue(producer, topic, queue)
        tally = _Tally(topic, as_json)
        if body is not None:
            _send_all(producer, template, [body.encode()] * count, target, tally)
        else:
            with _open(file) as source:
                bodies = [_whole(source)] if whole else _lines(source)
                _send_all(producer, template, bodies, target, tally)
    tally.finish()


def _check_tag(tag: str | None) -> None:
    if tag is None:
        return
    if "||" in tag:
        raise BadParameter(
            f"--tags is {tag!r}; a message has one tag, and no subscription could name this one: "
            "'||' stands between the tags of a subscription"
        )
    if not tag or tag != tag.strip():
        raise BadParameter(
            f"--tags is {tag!r}; blanks around a tag keep subscriptions from naming it"
        )


def _check_delay_level(namesrv: str, topic: str, level: int) -> None:
    """A broker takes a level it does not have for its last one, hours later, without a word."""
    with looking(namesrv) as admin:
        levels = admin.brokers.delay_levels(topic)
    if level > len(levels):
        raise BadParameter(
            f"--delay-level is {level}; the broker has 1 to {len(levels)}: {' '.join(levels)}"
        )


def _check_source(
    body: str | None, file: Path | None, stdin: bool, count: int, whole: bool
) -> None:
    given = [name for name, there in (
        ("BODY", body is not None), ("--file", file is not None), ("--stdin", stdin)
    ) if there]  # fmt: skip
    if len(given) != 1:
        said = " and ".join(given) or "nothing"
        raise BadParameter(f"{said} given to send; give exactly one of BODY, --file, --stdin")
    if count > 1 and body is None:
        raise BadParameter("--count repeats BODY; it does not go with --file or --stdin")
    if whole and body is not None:
        raise BadParameter("--whole is for --file and --stdin; BODY is one message anyway")


def _open(file: Path | None) -> BinaryIO:
    if file is None or str(file) == "-":
        return sys.stdin.buffer
    return file.open("rb")


def _whole(source: BinaryIO) -> bytes:
    # One byte more than a message may have is enough for the producer to refuse it.
    return source.read(limits.MESSAGE_BODY_BYTES_MAX + 1)


def _lines(source: BinaryIO) -> Iterator[bytes]:
    for line in source:
        body = line.rstrip(b"\r\n")
        if body.strip():
            yield body


def _find_queue(producer: Producer, topic: str, text: str) -> MessageQueue:
    broker, _, number = text.rpartition(":")
    if not number.isdecimal():
        raise BadParameter(f"--queue is {text!r}; accepted is ID or BROKER:ID, like 3")
    queues = sorted(producer.fetch_publish_message_queues(topic))
    found = [q for q in queues if q.queue_id == int(number) and broker in ("", q.broker_name)]
    if len(found) == 1:
        return found[0]
    there = ", ".join(f"{q.broker_name}:{q.queue_id}" for q in queues)
    problem = "is on several brokers" if found else "is not a queue of the topic"
    raise BadParameter(f"--queue {text} {problem}; {topic} has {there}")


def _send_all(
    producer: Producer,
    template: Template,
    bodies: Iterable[bytes],
    queue: MessageQueue | None,
    tally: _Tally,
) -> None:
    for batch in _batches(bodies, single=template.delay_level > 0):
        messages = [template.message(body) for body in batch]
        # A batch of one would be stored the same way, but a single send also takes delays and
        # bodies too large for a batch, and reports those in its own words.
        what: Any = messages if len(messages) > 1 else messages[0]
        tally.add(producer.send(what, message_queue=queue), len(messages))


def _batches(bodies: Iterable[bytes], *, single: bool) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for body in bodies:
        if batch and (single or len(batch) >= _BATCH_MESSAGES or size + len(body) > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(body)
        size += len(body)
    if batch:
        yield batch


class _Tally:
    """Prints results as they come, or one line for many."""

    def __init__(self, topic: str, as_json: bool) -> None:
        self._topic = topic
        self._as_json = as_json
        self._first: list[dict[str, Any]] = []
        self._count = 0
        self._queues: set[tuple[str, int]] = set()
        self._odd: dict[str, int] = {}

    def add(self, result: SendResult, count: int) -> None:
        queue = result.message_queue
        self._queues.add((queue.broker_name, queue.queue_id))
        status = result.send_status.value
        if status != "SEND_OK":
            self._odd[status] = self._odd.get(status, 0) + count
        ids = result.msg_id.split(",")
        offset_ids = result.offset_msg_id.split(",")
        for index in range(count):
            row = {
                "status": status,
                "topic": queue.topic,
                "brokerName": queue.broker_name,
                "queueId": queue.queue_id,
                "queueOffset": result.queue_offset + index,
                "msgId": ids[index] if index < len(ids) else None,
                "offsetMsgId": offset_ids[index] if index < len(offset_ids) else None,
            }
            if self._as_json:
                print_line(json_line(row))
            elif self._count < _DETAILS_MAX:
                self._first.append(row)
            self._count += 1

    def finish(self) -> None:
        if self._as_json:
            return
        if self._count <= _DETAILS_MAX:
            for row in self._first:
                print_line(
                    f"{row['status']} {row['topic']} broker={row['brokerName']} "
                    f"queue={row['queueId']} offset={row['queueOffset']} msgId={row['msgId']}"
                )
        if self._count != 1:
            where = plural(len(self._queues), "queue")
            print_line(f"sent {plural(self._count, 'message')} to {self._topic}, {where}")
        for status, count in self._odd.items():
            print_line(f"{plural(count, 'message')} stored with {status}")
