"""``group list`` and ``group lag`` show what waits, failed or was given up, and judge bounds."""

from __future__ import annotations

import dataclasses

import pytest

from rocketstream import Message, Producer
from rocketstream.admin import Admin
from rocketstream.admin.state import GroupState, QueueKind, QueueState
from rocketstream.cli.group import about, print_states
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.model import MessageQueue
from rocketstream.server.embedded import EmbeddedCluster
from tests.plugins.commands import Quick

NOW = 1_700_000_000_000


@pytest.fixture
def quick(rocketmq_cluster: EmbeddedCluster) -> Quick:
    """Group ``billing`` consumed 2 of 5 orders; one waits for another try, three were given up."""
    with Admin(rocketmq_cluster.namesrv_addr) as admin:
        for topic in ("orders", "%RETRY%billing", "%DLQ%billing"):
            admin.topics.create(topic, 1)
    with Producer("cli-progress", namesrv_addr=rocketmq_cluster.namesrv_addr) as producer:
        for number in range(5):
            producer.send(Message("orders", f"{number}"))
        producer.send(Message("%RETRY%billing", "again"))
        for number in range(3):
            producer.send(Message("%DLQ%billing", f"{number}"))
    commit(rocketmq_cluster, "billing", 2)
    commit(rocketmq_cluster, "done", 5)
    return Quick(rocketmq_cluster.namesrv_addr)


def commit(cluster: EmbeddedCluster, group: str, offset: int) -> None:
    with BlockingAdminClient(cluster.namesrv_addr) as client:
        client.update_consumer_offset(group, MessageQueue("orders", "broker-a", 0), offset)


def test_the_list_shows_retries_and_dead_letters_beside_lag(quick: Quick) -> None:
    billing, done = quick("group", "list", "--json").worked().json
    assert (billing["lag"], billing["retrying"], billing["deadLetters"]) == (4, 1, 3)
    assert (done["lag"], done["retrying"], done["deadLetters"]) == (0, 0, 0)
    text = quick("group", "list").worked().out
    heading, _, first, second, *_ = text.splitlines()
    assert "Retrying" in heading
    assert "Dead letters" in heading
    assert first.split()[0] == "billing"
    assert second.split()[:2] == ["done", "0"]


def test_lag_says_what_waits_beyond_the_queues(quick: Quick) -> None:
    text = quick("group", "lag", "billing").worked().out
    assert "total lag 4 in 2 queues" in text
    assert "1 message in its retry topic, to be tried again" in text
    assert "3 dead letters: given up, see `rocketstream dlq causes billing`" in text
    assert "nobody is connected" in text
    rows = quick("group", "lag", "billing", "--json").worked().json
    assert [(r["topic"], r["kind"], r["lag"], r["expired"]) for r in rows] == [
        ("%RETRY%billing", "retry", 1, None),
        ("orders", "topic", 3, 0),
    ]


def test_bounds_give_exit_codes_for_scripts(quick: Quick) -> None:
    quick("group", "lag", "billing", "--max", "4", "--max-age", "1d").worked()
    over = quick("group", "lag", "billing", "--max", "3")
    assert (over.code, over.err) == (3, "exceeded: billing: 4 messages wait, over 3\n")
    assert "total lag 4" in over.out
    late = quick("group", "lag", "--max-age", "0s", "--json")
    assert late.code == 3
    assert late.err.startswith("exceeded: billing: a message waits for ")
    quick("group", "lag", "done", "--max", "0", "--max-age", "0s").worked()


def test_a_bound_on_what_is_not_known_is_not_kept(
    quick: Quick, rocketmq_cluster: EmbeddedCluster
) -> None:
    with Admin(rocketmq_cluster.namesrv_addr) as admin:
        admin.topics.create("orders", 2)
    with Producer("cli-progress", namesrv_addr=rocketmq_cluster.namesrv_addr) as producer:
        producer.send(Message("orders", "x"), message_queue=MessageQueue("orders", "broker-a", 1))
    done = quick("group", "lag", "done", "--max", "10")
    assert "not known for done" in done.failed()
    assert "1 queue without a committed offset not counted" in done.out


def test_a_topic_chooses_the_groups_that_consume_it(quick: Quick) -> None:
    rows = quick("group", "lag", "--topic", "orders", "--json").worked().json
    assert [(row["group"], row["lag"]) for row in rows] == [("billing", 3), ("done", 0)]


def test_nobody_to_ask_is_an_error_and_no_empty_table(quick: Quick) -> None:
    for words in (["group", "lag", "--topic", "orders"], ["group", "lag"], ["group", "list"]):
        assert "no name server answered" in quick(*words, "-n", "127.0.0.1:1").failed()
    assert "'nowhere'" in quick("group", "lag", "--topic", "nowhere").failed()


def test_a_bound_that_is_no_span_is_refused(quick: Quick) -> None:
    wrong = quick("group", "lag", "billing", "--max-age", "5 moons")
    assert "'5 moons' is not a span of time" in wrong.failed(2)
    assert quick("group", "lag", "billing", "--max", "-1").code == 2


def queue(**told: object) -> QueueState:
    made = QueueState("orders", "broker-a", 0, min_offset=40, max_offset=100, committed_offset=5)

    return dataclasses.replace(made, **told)  # type: ignore[arg-type]


def test_what_expired_and_what_a_filter_wants_have_columns_where_there_is_such(
    capsys: pytest.CaptureFixture[str],
) -> None:
    state = GroupState("g", NOW, queues=(queue(next_stored_ms=NOW - 65_000),))
    print_states([state], named=False)
    text = capsys.readouterr().out
    assert "Expired" in text
    assert "Wanted" not in text
    assert "35 messages expired: deleted before it consumed them" in text
    assert "1 min 05 s" in text
    wanted = queue(matching=20, matching_is_exact=False, matching_range=(12, 31))
    print_states([GroupState("g", NOW, queues=(wanted,))], named=False)
    text = capsys.readouterr().out
    assert "~20 (12 to 31)" in text
    assert "of which its filter wants about 20" in text


def test_one_owner_is_told_once_and_several_in_a_column(
    capsys: pytest.CaptureFixture[str],
) -> None:
    mine, nobodys = queue(client_id="10.0.0.1@7"), queue(queue_id=1)
    print_states([GroupState("g", NOW, queues=(mine,))], named=False)
    text = capsys.readouterr().out
    assert "10.0.0.1@7 owns all queues" in text
    assert "Owner" not in text
    print_states([GroupState("g", NOW, queues=(mine, nobodys))], named=False)
    assert "10.0.0.1@7 owns 1 of 2 queues" in capsys.readouterr().out
    other = queue(queue_id=2, client_id="10.0.0.2@9")
    print_states([GroupState("g", NOW, queues=(mine, other))], named=False)
    text = capsys.readouterr().out
    assert "Owner" in text
    assert "10.0.0.2@9" in text
    print_states([GroupState("g", NOW, queues=(nobodys,))], named=False)
    assert " owns " not in capsys.readouterr().out


def test_what_is_not_known_is_said_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    lost = QueueState("orders", "broker-b", 1, error="broker broker-b does not answer")
    state = GroupState("g", NOW, queues=(queue(), lost), errors=("broker broker-b is silent",))
    print_states([state], named=True)
    text = capsys.readouterr().out
    assert "unknown" in text
    assert "total lag 60 in 2 queues; 1 queue not known" in text
    assert "g: broker broker-b is silent" in text
    assert "g: queue 1 of orders at broker-b: broker broker-b does not answer" in text


def test_messages_waiting_for_the_next_try_are_at_least_what_was_read() -> None:
    state = GroupState("g", NOW, delayed=1)
    assert about(state) == ["1 message that failed waits for the next try"]
    state = GroupState("g", NOW, members=(), delayed=500, delayed_is_exact=False)
    assert "at least 500 messages that failed wait for the next try" in about(state)
    assert state.of_kind(QueueKind.RETRY) == ()


def test_why_nothing_is_known_of_a_broadcasting_group_is_said() -> None:
    state = GroupState("g", NOW, message_model="BROADCASTING", queues=(queue(),))
    assert "broadcasting: each member keeps offsets of its own, brokers know none" in about(state)
