"""Messages polled as record batches: the rows are the messages, and count as polled ones do."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pyarrow as pa
import pytest

from rocketstream import ClientConfig, Message, MessageExt, MessageSelector
from rocketstream.client.config import check_columns
from rocketstream.errors import ClientStateError, ConfigurationError, NotSupportedError
from tests.kits.cluster import Cluster
from tests.kits.faces import LitePullConsumer
from tests.kits.listeners import fill, numbered, send_all, stored
from tests.plugins.clusters import Names
from tests.plugins.waiting import wait_until
from tests.pulling.polling import FIRST, WAIT_MS, bodies, is_waiting, lite, subscribed

pytestmark = pytest.mark.usefixtures("face")


def poll_rows(
    consumer: LitePullConsumer, count: int, max_rows: int = 10_000, **more: Any
) -> list[dict[str, Any]]:
    """Poll until there are ``count`` rows."""
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        batch = consumer.poll_arrow(max_rows, timeout_ms=WAIT_MS, **more)
        assert 0 < batch.num_rows <= max_rows, f"{len(rows)} of {count} messages came"
        rows += batch.to_pylist()
    return rows


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(int(row["body"]) for row in rows)


def as_row(message: MessageExt) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "brokerName": message.broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": message.msg_id,
        "tags": message.tags,
        "keys": message.keys,
        "body": message.body,
        "flag": message.flag,
        "bornHost": message.born_host,
        "storeHost": message.store_host,
        "reconsumeTimes": message.reconsume_times,
        "sysFlag": message.sys_flag,
        "commitLogOffset": message.commit_log_offset,
        "error": None,
    }


@pytest.mark.parametrize("count", [5, 700], ids=["few", "many"])
def test_rows_are_the_messages_with_all_they_carry(
    cluster: Cluster, names: Names, count: int
) -> None:
    sent = numbered(names.topic, range(count), tags="A", keys="k", properties={"p": "v"}, flag=3)
    sent[2] = Message(names.topic, "2" * 20_000)  # compressed on its way
    fill(cluster, names.topic, sent, queues=2)
    messages = stored(cluster, names.topic, count)
    with subscribed(cluster, names) as consumer:
        rows = poll_rows(consumer, count)
    by_place = {(row["queueId"], row["queueOffset"]): row for row in rows}
    assert len(by_place) == len(rows) == count
    assert messages.keys() == by_place.keys()
    for place, message in messages.items():
        row = by_place[place]
        assert dict(row.pop("properties")).get("p") == message.get_property("p")
        for name, stamp in (("born", message.born_timestamp), ("store", message.store_timestamp)):
            assert row.pop(f"{name}Timestamp").timestamp() * 1000 == pytest.approx(stamp)
        assert row == as_row(message)


def test_columns_are_chosen_in_the_order_wanted_with_sparks_types(
    cluster: Cluster, names: Names
) -> None:
    fill(cluster, names.topic, numbered(names.topic, range(3)), queues=1)
    wanted = pa.schema([("queueOffset", pa.int64()), ("body", pa.binary())])
    with subscribed(cluster, names) as consumer:
        batch = consumer.poll_arrow(10, ["queueOffset", "body"], WAIT_MS)
        assert batch.schema.equals(wanted)
        assert batch.to_pylist()[0] == {"queueOffset": 0, "body": b"0"}
        rest = consumer.poll_arrow(10, ["queueOffset", "body"], 0)
        while rest.num_rows:
            rest = consumer.poll_arrow(10, ["queueOffset", "body"], 0)
        assert rest.schema.equals(wanted)
        everything = consumer.poll_arrow(10, timeout_ms=0).schema
    assert (len(everything), everything.names[-1]) == (18, "error")


def test_at_most_max_rows_come_at_once_and_a_queue_keeps_its_order(
    cluster: Cluster, names: Names
) -> None:
    fill(cluster, names.topic, numbered(names.topic, range(300)), queues=2)
    with subscribed(cluster, names) as consumer:
        rows = poll_rows(consumer, 300, max_rows=7, columns=["body", "queueId", "queueOffset"])
    for queue in (0, 1):
        offsets = [row["queueOffset"] for row in rows if row["queueId"] == queue]
        assert offsets == list(range(150))
    assert numbers(rows) == list(range(300))


def test_without_auto_commit_only_commits_count(cluster: Cluster, names: Names) -> None:
    fill(cluster, names.topic, numbered(names.topic, range(20)), queues=1)
    with subscribed(cluster, names, auto_commit=False) as consumer:
        first = poll_rows(consumer, 5, max_rows=5, columns=["body"])
        consumer.commit_sync()
        second = poll_rows(consumer, 15, columns=["body"])
    assert cluster.committed(names.group, names.topic, 1) == [5]
    assert numbers(first) + numbers(second) == list(range(20))


def test_an_error_in_the_with_block_leaves_the_batch_uncommitted(
    cluster: Cluster, names: Names
) -> None:
    fill(cluster, names.topic, numbered(names.topic, range(30)), queues=1)
    with contextlib.suppress(ZeroDivisionError), subscribed(cluster, names) as consumer:
        first = poll_rows(consumer, 10, max_rows=10, columns=["body"])
        consumer.poll_arrow(10, ["body"], WAIT_MS)
        raise ZeroDivisionError
    with subscribed(cluster, names) as consumer:
        again = poll_rows(consumer, 20, columns=["body"])
    assert numbers(first) == list(range(10))
    assert numbers(again) == list(range(10, 30))


def test_the_end_of_the_with_block_commits_the_last_batch(cluster: Cluster, names: Names) -> None:
    fill(cluster, names.topic, numbered(names.topic, range(30)), queues=1)
    with subscribed(cluster, names) as consumer:
        poll_rows(consumer, 10, max_rows=10, columns=["body"])
    with subscribed(cluster, names) as consumer:
        again = poll_rows(consumer, 20, columns=["body"])
    assert numbers(again) == list(range(10, 30))


def test_polls_iteration_and_batches_may_alternate(cluster: Cluster, names: Names) -> None:
    """What is kept undecoded for batches is pulled anew for messages, and none is left out."""
    fill(cluster, names.topic, numbered(names.topic, range(600)), queues=2)
    got: list[int] = []
    with subscribed(cluster, names) as consumer:
        while len(got) < 600:
            got += numbers(poll_rows(consumer, 1, max_rows=40, columns=["body"]))
            got += bodies(consumer.poll(WAIT_MS if len(got) < 600 else 0))
            if len(got) < 600:
                got.append(int(next(iter(consumer)).body))
    assert sorted(got) == list(range(600))


def test_tags_that_only_look_alike_are_left_out(cluster: Cluster, names: Names) -> None:
    """Covers C-220: brokers compare hashes; "Aa" and "BB" have the same."""
    messages = [Message(names.topic, str(n), tags="Aa" if n % 2 else "BB") for n in range(500)]
    fill(cluster, names.topic, messages, queues=1)
    with subscribed(cluster, names, "Aa") as consumer:
        rows = poll_rows(consumer, 250, columns=["body", "tags"])
        (mq,) = consumer.fetch_message_queues(names.topic)
        consumer.commit_sync()
        assert consumer.committed(mq) == 500
    assert numbers(rows) == list(range(1, 500, 2))
    assert {row["tags"] for row in rows} == {"Aa"}


def test_conditions_select_rows(cluster: Cluster, names: Names) -> None:
    messages = [Message(names.topic, str(n), properties={"a": str(n)}) for n in range(60)]
    cluster.create_topic(names.topic, 2)
    consumer = lite(cluster, names)
    consumer.subscribe(names.topic, MessageSelector.by_sql("a > 39"))
    with consumer:
        wait_until(lambda: len(consumer.assignment()) == 2, "both queues")
        send_all(cluster.namesrv_addr, messages)
        rows = poll_rows(consumer, 20, columns=["body"])
    assert numbers(rows) == list(range(40, 60))


def test_a_seek_goes_on_elsewhere(cluster: Cluster, names: Names) -> None:
    fill(cluster, names.topic, numbered(names.topic, range(400)), queues=1)
    with subscribed(cluster, names) as consumer:
        poll_rows(consumer, 5, max_rows=5)
        (mq,) = consumer.assignment()
        consumer.seek(mq, 390)
        rows = poll_rows(consumer, 10, columns=["queueOffset"])
        consumer.seek(mq, 0)
        again = poll_rows(consumer, 400, columns=["queueOffset"])
    assert [row["queueOffset"] for row in rows] == list(range(390, 400))
    assert [row["queueOffset"] for row in again] == list(range(400))


def test_iteration_ends_when_the_consumer_is_shut_down(cluster: Cluster, names: Names) -> None:
    fill(cluster, names.topic, numbered(names.topic, range(50)), queues=2)
    got: list[int] = []
    ending = threading.Thread(target=lambda: ends(consumer))
    with subscribed(cluster, names) as consumer:
        for batch in consumer.arrow_batches(20, ["body"]):
            got += numbers(batch.to_pylist())
            if len(got) == 50:
                ending.start()
        ending.join()
    assert sorted(got) == list(range(50))
    assert list(consumer.arrow_batches()) == []


def test_a_batch_of_an_iteration_counts_once_the_next_is_asked_for(
    cluster: Cluster, names: Names
) -> None:
    fill(cluster, names.topic, numbered(names.topic, range(50)), queues=1)
    with subscribed(cluster, names) as consumer:
        batches = consumer.arrow_batches(10, ["body"])
        got = [numbers(next(batches).to_pylist()) for _ in range(3)]
    assert got == [list(range(first, first + 10)) for first in (0, 10, 20)]
    assert cluster.committed(names.group, names.topic, 1) == [20]


def ends(consumer: LitePullConsumer) -> None:
    wait_until(lambda: is_waiting(consumer), "the iteration to wait")
    consumer.shutdown()


def test_hooks_see_what_is_handed_out_in_batches(cluster: Cluster, names: Names) -> None:
    """Covers C-495, C-232: consume hooks around a poll, filter hooks before messages are cached."""
    fill(cluster, names.topic, numbered(names.topic, range(20)), queues=2)
    seen: list[int] = []

    class Hook:
        name = "seeing"

        def consume_message_before(self, context: Any) -> None:
            seen.extend(int(message.body) for message in context.messages)

        def consume_message_after(self, context: Any) -> None:
            """Nothing."""

        def filter_message(self, context: Any) -> None:
            context.messages[:] = [m for m in context.messages if int(m.body) % 2]

    consumer = lite(cluster, names, subscription={names.topic: "*"})
    consumer.register_consume_message_hook(Hook())
    consumer.register_filter_message_hook(Hook())
    with consumer:
        rows = poll_rows(consumer, 10, columns=["body"])
    assert sorted(seen) == numbers(rows) == list(range(1, 20, 2))


def test_a_namespace_is_taken_off_the_topics_column(cluster: Cluster, names: Names) -> None:
    inside = f"ns%{names.topic}"
    fill(cluster, inside, numbered(inside, range(5)), queues=1)
    config = ClientConfig(namesrv_addr=cluster.namesrv_addr, namespace="ns")
    with LitePullConsumer(
        names.group, config=config, consume_from_where=FIRST, subscription={names.topic: "*"}
    ) as consumer:
        rows = poll_rows(consumer, 5, columns=["topic", "body"])
    assert {row["topic"] for row in rows} == {names.topic}


def test_what_makes_no_sense_is_refused(
    cluster: Cluster, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = lite(cluster, names, subscription={names.topic: "*"})
    with pytest.raises(ClientStateError):
        consumer.poll_arrow()
    with consumer:
        with pytest.raises(ConfigurationError, match=r"no column 'bodies'.*topic, brokerName"):
            consumer.poll_arrow(columns=["bodies"])
        with pytest.raises(ConfigurationError, match="'body' is given twice"):
            consumer.poll_arrow(columns=["body", "body"])
        with pytest.raises(ConfigurationError, match="none is given"):
            consumer.poll_arrow(columns=[])
        with pytest.raises(ConfigurationError, match="max_rows"):
            consumer.poll_arrow(0)
        with pytest.raises(ConfigurationError, match="timeout_ms"):
            consumer.poll_arrow(timeout_ms=-1)
        check_columns.cache_clear()
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(NotSupportedError, match=r"poll_arrow needs .*rocketstream\[columns\]"):
            consumer.poll_arrow(timeout_ms=0)
        check_columns.cache_clear()


def test_a_second_thread_or_task_waits_its_time_and_no_longer(
    cluster: Cluster, names: Names
) -> None:
    cluster.create_topic(names.topic, 1)
    with subscribed(cluster, names) as consumer:
        first = threading.Thread(target=lambda: consumer.poll_arrow(timeout_ms=WAIT_MS))
        first.start()
        wait_until(lambda: is_waiting(consumer), "the first to wait")
        assert consumer.poll_arrow(timeout_ms=1).num_rows == 0
        assert is_waiting(consumer)
        consumer.shutdown()
        first.join()


def test_nothing_comes_in_time(cluster: Cluster, names: Names) -> None:
    cluster.create_topic(names.topic, 1)
    with subscribed(cluster, names, consume_from_where=FIRST) as consumer:
        assert consumer.poll_arrow(timeout_ms=1).num_rows == 0
