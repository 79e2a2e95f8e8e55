"""``rocketstream consume TOPIC``: print a topic's messages as a member of a group.

Law: a message is acknowledged after its line is written.
"""

from __future__ import annotations

import base64
import sys
import threading
from typing import TYPE_CHECKING, Any

import click
from click import BadParameter

from rocketstream.admin.core.words import plural
from rocketstream.cli.commands import (
    JSON_LINES,
    Seconds,
    StartPosition,
    Whole,
    names,
    option,
    parse_start,
    shows,
    upstream_timestamp,
)
from rocketstream.cli.commands import start as start_option
from rocketstream.cli.commands import topic as topic_argument
from rocketstream.cli.failure import say
from rocketstream.cli.output import json_line, print_line

if TYPE_CHECKING:
    from rocketstream import (
        ConsumeConcurrentlyStatus,
        MessageExt,
        MessageSelector,
        PushConsumer,
    )

_POLL_S = 0.5
_NEXT_MESSAGE_S = 0.3


@click.command(
    epilog="Examples: `rocketstream consume orders --group audit --from earliest` · "
    "`rocketstream consume orders --group audit --max 10 --json | jq .body`"
)
@topic_argument
@option(
    "--group, -g TEXT",
    "Consumer group; its progress is kept by the broker.",
    required=True,
    shell_complete=names("groups"),
)
@start_option(default="latest")
@option("--max, -m N", "End after this many messages.", Whole(1), to="limit")
@option('--tags "A || B"', "Only messages with these tags.", default="*")
@option("--sql CONDITION", 'Only messages whose properties fulfil this, such as "price > 5".')
@option("--idle SECONDS", "End after this time without a message.", Seconds(0.1), to="idle_s")
@shows(help=JSON_LINES)
def consume(
    topic: str,
    group: str,
    start: str,
    limit: int | None,
    tags: str,
    sql: str | None,
    idle_s: float | None,
    namesrv: str,
    as_json: bool,
) -> None:
    """Print the bodies of a topic's messages, one a line, until Ctrl-C.

    Members of one group share the queues. Each message is acknowledged after it is printed, so
    messages that were not printed are delivered again.
    """
    position = parse_start(start)
    from rocketstream.admin import Admin
    from rocketstream.protocol.names import check_group, check_topic

    selector = _selector(tags, sql)
    check_topic(topic)
    check_group(group)
    with Admin(namesrv) as admin:
        admin.topics.route(topic)  # a consumer would wait for ever for a topic nobody has
        if position.name != "earliest":
            admin.groups.begin(group, topic, position.timestamp_ms)
    printer = Printer(limit, as_json)
    consumer = _consumer(group, namesrv, position)
    consumer.subscribe(topic, selector)
    consumer.register_message_listener(printer.listen)
    consumer.start()
    try:
        printer.wait(idle_s)
    finally:
        # A held message counts as not consumed only while its listener has not returned.
        consumer.shutdown(printer.patience_ms())
        printer.close()
    if printer.failure is not None:
        raise printer.failure
    if limit is None or printer.count < limit:
        say(f"{plural(printer.count, 'message')} consumed")


def _selector(tags: str, sql: str | None) -> MessageSelector:
    from rocketstream.errors import SubscriptionError
    from rocketstream.model import MessageSelector
    from rocketstream.protocol.sql92 import compile_expression

    if sql is None:
        return MessageSelector.by_tag(tags)
    if tags != "*":
        raise BadParameter("give --tags or --sql, not both; TAGS is a property too")
    try:
        compile_expression(sql)
    except SubscriptionError as error:
        raise BadParameter(error.message) from None
    return MessageSelector.by_sql(sql)


def _consumer(group: str, namesrv: str, position: StartPosition) -> PushConsumer:
    from rocketstream import ConsumeFromWhere, PushConsumer

    settings: dict[str, Any] = {}
    if position.timestamp_ms is not None:
        where = ConsumeFromWhere.TIMESTAMP
        settings["consume_timestamp"] = upstream_timestamp(position.timestamp_ms)
    elif position.name == "earliest":
        where = ConsumeFromWhere.FIRST_OFFSET
    else:
        where = ConsumeFromWhere.LAST_OFFSET
    return PushConsumer(
        group,
        namesrv_addr=namesrv,
        consume_from_where=where,
        consume_thread_min=1,
        consume_thread_max=1,
        **settings,
    )


class Printer:
    """The listener: prints messages one at a time until it has printed enough."""

    def __init__(self, limit: int | None, as_json: bool) -> None:
        self._limit = limit
        self._as_json = as_json
        self._changed = threading.Condition()
        self._done = False
        self._holding = False
        self.count: int = 0
        self.failure: Exception | None = None

    def listen(self, messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        """Print one message; once enough are printed, hold on to the next until shutdown."""
        from rocketstream import ConsumeConcurrentlyStatus

        for message in messages:
            with self._changed:
                if not self._enough():
                    try:
                        self._print(message)
                        self.count += 1
                    except Exception as error:
                        self.failure = error
                    self._changed.notify_all()
                    if self.failure is None:
                        continue
                self._holding = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._done)
                return ConsumeConcurrentlyStatus.RECONSUME_LATER
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    def wait(self, idle_s: float | None) -> None:
        """Return when enough is printed, printing failed, or nothing came for ``idle_s``."""
        with self._changed:
            while not self._enough():
                seen = self.count
                # Waking up now and then lets a signal through on every platform.
                woken = self._changed.wait(_POLL_S if idle_s is None else idle_s)
                if not woken and idle_s is not None and self.count == seen:
                    return

    def patience_ms(self) -> float | None:
        """Return how long shutdown should wait for the listener; None leaves it to the consumer.

        When enough is printed, the next message's call shows that the last one's result is noted.
        Without a next message there is nobody to wait for.
        """
        with self._changed:
            if not self._enough():
                return None
            held = self._changed.wait_for(lambda: self._holding, _NEXT_MESSAGE_S)
            return 0 if held else _NEXT_MESSAGE_S * 1000

    def close(self) -> None:
        """Let a held message go back unacknowledged."""
        with self._changed:
            self._done = True
            self._changed.notify_all()

    def _enough(self) -> bool:
        return (
            self._done
            or self.failure is not None
            or (self._limit is not None and self.count >= self._limit)
        )

    def _print(self, message: MessageExt) -> None:
        if self._as_json:
            print_line(json_line(message_json(message)))
        elif sys.stdout.isatty():
            print_line(bytes(message.body).decode("utf-8", "backslashreplace"))
        else:  # byte for byte: a program reads it
            sys.stdout.buffer.write(bytes(message.body) + b"\n")
            sys.stdout.buffer.flush()


def message_json(message: MessageExt) -> dict[str, Any]:
    """Return a message as JSON; a body that is not UTF-8 text is given as ``bodyBase64``."""
    row: dict[str, Any] = {
        "topic": message.topic,
        "brokerName": message.broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": message.msg_id,
        "tags": message.tags,
        "keys": message.keys,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "reconsumeTimes": message.reconsume_times,
        "properties": dict(message.properties),
    }
    body = bytes(message.body)
    try:
        row["body"] = body.decode()
    except UnicodeDecodeError:
        row["bodyBase64"] = base64.b64encode(body).decode()
    return row
