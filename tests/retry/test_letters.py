"""What becomes of messages a listener fails, as operators see it: why, where they are, and back.

The causes travel in copies that consumers send anew: Apache's brokers keep what such a copy says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rocketstream import (
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    Message,
    MessageExt,
)
from rocketstream.admin import Admin, LetterCause, LetterFilter, Masking
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.errors import RouteNotFoundError
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import ConsumerSendMsgBackRequestHeader
from tests.kits.cluster import Cluster
from tests.kits.listeners import WAIT_S, Seen, consumer_of, fill
from tests.plugins.clusters import Names
from tests.plugins.waiting import wait_until

pytestmark = pytest.mark.usefixtures("face")

OK = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER


class NoPriceError(Exception):
    """An application's own."""


def price_of(message: MessageExt) -> int:
    raise NoPriceError(f"no price for order {message.keys}\n and a second line")


def faulty(messages: list[MessageExt]) -> Any:
    """Fail in the way the tag says."""
    message = messages[0]
    if message.tags == "price":
        price_of(message)
    if message.tags == "number":
        int(bytes(message.body))
    if message.tags == "nothing":
        return None
    return LATER if message.tags == "later" else OK


def messages_of(topic: str, *tags: str, each: int = 1) -> Iterator[Message]:
    for tag in tags:
        for number in range(each):
            yield Message(topic, f"x{number}", tags=tag, keys=f"k{tag}{number}")


@contextmanager
def consuming(
    cluster: Cluster, names: Names, listener: Callable[..., Any], **settings: Any
) -> Iterator[None]:
    consumer = consumer_of(cluster.namesrv_addr, names.group, names.topic, listener, **settings)
    consumer.start()
    try:
        yield
    finally:
        consumer.shutdown()


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.namesrv_addr) as admin:
        yield admin


def causes(admin: Admin, group: str, letters: int) -> list[LetterCause]:
    """Return the causes of a group as soon as so many letters are there."""

    def look() -> list[LetterCause] | None:
        try:
            found = admin.letters.by_cause(group)
        except RouteNotFoundError:
            return None
        return list(found) if found.letters >= letters else None

    return wait_until(look, f"{letters} dead letters of {group}", WAIT_S)


@pytest.mark.parametrize("tries", [0, 1])
def test_dead_letters_tell_what_was_raised_and_where(
    cluster: Cluster, names: Names, admin: Admin, tries: int
) -> None:
    """At the first try and after retries, which a copy passes through the delay topic for."""
    tags = ("price", "number", "nothing", "later", "good")
    fill(cluster, names.topic, messages_of(names.topic, *tags, each=3), 2)
    with consuming(cluster, names, faulty, send_back_cause=True, max_reconsume_times=tries):
        found = causes(admin, names.group, 12)
    by_cause = {each.cause: each for each in found}
    mine = f"{__name__}.NoPriceError: no price for order kprice<n> and a second line"
    assert by_cause.keys() == {
        mine,
        "ValueError: invalid literal for int() with base <n>: <text>",
        "NO_STATUS: the listener returned NoneType",
        "RECONSUME_LATER",
    }
    assert {(each.count, each.stale, each.is_told) for each in found} == {(3, 0, True)}
    assert all(each.topics == {names.topic: 3} for each in found)
    where = str(by_cause[mine].where)
    assert where.startswith(__name__.replace(".", "/") + ".py:")
    assert where.endswith(" price_of")
    assert str(by_cause["RECONSUME_LATER"].where).endswith(" faulty")
    example = by_cause[mine].example
    assert (example.reconsume_times, example.tags) == (tries + 1, "price")
    assert example.properties["SEND_BACK_TRY"] == str(tries)


def test_letters_of_consumers_that_do_not_tell_are_told_apart_by_what_is_known(
    cluster: Cluster, names: Names, admin: Admin
) -> None:
    fill(cluster, names.topic, messages_of(names.topic, "price", "later", each=2), 1)
    with consuming(cluster, names, faulty, max_reconsume_times=0):
        found = causes(admin, names.group, 4)
    assert {(each.is_told, each.cause, each.where) for each in found} == {(False, "not told", None)}
    assert {(each.tag, each.tries, each.count) for each in found} == {
        ("price", 1, 2), ("later", 1, 2),
    }  # fmt: skip
    assert all(each.topics == {names.topic: 2} for each in found)


def test_an_orderly_listeners_last_try_is_told_too(
    cluster: Cluster, names: Names, admin: Admin
) -> None:
    def listen(messages: list[MessageExt], _: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        price_of(messages[0])
        return ConsumeOrderlyStatus.SUCCESS

    fill(cluster, names.topic, messages_of(names.topic, "price", each=2), 1)
    consumer = consumer_of(
        cluster.namesrv_addr, names.group, names.topic, None,  # type: ignore[arg-type]
        send_back_cause=True, max_reconsume_times=1, suspend_current_queue_time_ms=10,
    )  # fmt: skip
    consumer.register_message_listener(listen, orderly=True)
    consumer.start()
    try:
        (found,) = causes(admin, names.group, 2)
    finally:
        consumer.shutdown()
    assert (found.count, found.stale) == (2, 0)
    assert str(found.where).endswith(" price_of")


def test_a_redrive_of_one_cause_sends_its_letters_and_no_letter_is_sent_twice(
    cluster: Cluster, names: Names, admin: Admin
) -> None:
    fill(cluster, names.topic, messages_of(names.topic, "price", "later", each=40), 2)
    with consuming(cluster, names, faulty, send_back_cause=True, max_reconsume_times=0):
        found = {each.cause.partition(":")[0]: each for each in causes(admin, names.group, 80)}
    price = found[f"{__name__}.NoPriceError"]
    wanted = LetterFilter(cause=price.id)
    assert admin.letters.redrive_plan(names.group, wanted).letters == 40
    assert admin.letters.redrive(names.group, wanted, limit=30).sent == 30
    assert admin.letters.redrive(names.group, wanted).sent == 10
    again = {each.id: each.redriven for each in admin.letters.by_cause(names.group)}
    assert again == {price.id: 40, found["RECONSUME_LATER"].id: 0}
    # All of them, of which half was sent by the redrive of that cause.
    result = admin.letters.redrive(names.group)
    assert (result.sent, result.already_sent) == (40, 40)
    seen = Seen()
    with consuming(cluster, names, seen):
        seen.wait_deliveries(80)
    times = Counter(message.properties.get("REDRIVEN_FROM") for message in seen.consumed)
    assert set(times.values()) == {1}
    assert all(message.properties.get("SEND_BACK_CAUSE") is None for message in seen.consumed)


def test_a_message_is_tracked_through_retry_and_death(
    cluster: Cluster, names: Names, admin: Admin
) -> None:
    """Covers C-538: what was sent back is not told as consumed."""
    fill(cluster, names.topic, messages_of(names.topic, "good", "once", "price"), 1)
    ids = {m.tags: m.msg_id for m in admin.messages.search(names.topic).messages}
    first_try: list[str] = []

    def listen(messages: list[MessageExt]) -> Any:
        message = messages[0]
        if message.tags == "once" and not message.reconsume_times:
            first_try.append(message.msg_id)
            return LATER
        return faulty(messages)

    def status(tag: str) -> tuple[str, int | None]:
        (row,) = admin.messages.track(names.topic, str(ids[tag]))
        return row.status, row.tries

    with consuming(
        cluster, names, listen, max_reconsume_times=1, persist_consumer_offset_interval_ms=100
    ):
        causes(admin, names.group, 1)
        wait_until(lambda: status("good") == ("CONSUMED", None), "its offset", WAIT_S)
        wait_until(lambda: status("once") == ("CONSUMED", 1), "its second try", WAIT_S)
        wait_until(lambda: status("price") == ("DEAD_LETTERED", 2), "its death", WAIT_S)
    admin.letters.redrive(names.group)
    (row,) = wait_until(  # a broker indexes keys a moment after it has stored the message
        lambda: admin.messages.track(names.topic, str(ids["price"])),
        "what was sent again",
        WAIT_S,
        fits=lambda rows: rows[0].status == "NOT_ONLINE",
    )
    assert "sent again" in str(row.description)


def test_a_message_that_waits_for_its_next_try_is_told_so(
    cluster: Cluster, names: Names, admin: Admin
) -> None:
    fill(cluster, names.topic, messages_of(names.topic, "later"), 1)
    (message,) = admin.messages.search(names.topic).messages
    with consuming(cluster, names, faulty, max_reconsume_times=1_000):
        (row,) = wait_until(
            lambda: [r for r in admin.messages.track(names.topic, message.msg_id) if r.tries],
            "a try",
            WAIT_S,
        )
        assert row.status == "RETRYING"
    (row,) = admin.messages.track(names.topic, message.msg_id)
    assert row.status == "RETRYING"
    assert row.tries


def test_a_send_back_itself_carries_no_cause(cluster: Cluster, names: Names, admin: Admin) -> None:
    """Why causes are sent anew: of request 36 a broker takes its own fields and no others."""
    fill(cluster, names.topic, messages_of(names.topic, "later"), 1)
    with consuming(cluster, names, Seen()):  # makes the group known
        pass
    (message,) = admin.messages.search(names.topic).messages
    stored = admin.messages.view(names.topic, message.msg_id)
    header = ConsumerSendMsgBackRequestHeader(
        stored.commit_log_offset, names.group, -1, stored.msg_id, names.topic, False, 0, None
    )
    command = RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    command.ext_fields = {**(command.ext_fields or {}), "SEND_BACK_CAUSE": "ValueError: lost"}
    with BlockingAdminClient(cluster.namesrv_addr) as client:
        client.request(stored.store_host, command)
    (found,) = causes(admin, names.group, 1)
    assert (found.is_told, "SEND_BACK_CAUSE" in found.example.properties) == (False, False)


def test_why_a_group_is_behind_is_told_masked_too(cluster: Cluster, names: Names) -> None:
    fill(cluster, names.topic, [Message(names.topic, "x", tags="later", keys="eve-4711")], 1)
    masking = Masking.from_mapping({"rule": [{"property": "KEYS"}]})
    with (
        Admin(cluster.namesrv_addr, masking=masking) as masked,
        Admin(cluster.namesrv_addr, masking=Masking()) as plain,
        consuming(cluster, names, faulty, max_reconsume_times=1_000),
    ):
        wait_until(lambda: "eve-4711" in str(plain.groups.why(names.group)), "its key", WAIT_S)
        assert "eve-4711" not in str(masked.groups.why(names.group))
