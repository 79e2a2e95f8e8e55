"""Membership: who is in, who must be told."""

from __future__ import annotations

import pytest

from rocketstream.errors import BrokerError
from rocketstream.limits import GROUPS_MAX
from rocketstream.protocol.bodies import ConsumerData, SubscriptionData
from rocketstream.server.broker.core.members import ConsumerMembers, Member, ProducerMembers

NOW = 1_700_000_000_000


def member(channel: str, client_id: str = "", now_ms: int = NOW) -> Member:
    return Member(channel, client_id or f"id-{channel}", 3, 409, now_ms, float(now_ms))


def data(*subscriptions: SubscriptionData, group: str = "cg") -> ConsumerData:
    where = "CONSUME_FROM_LAST_OFFSET"
    return ConsumerData(group, "CONSUME_PASSIVELY", "CLUSTERING", where, list(subscriptions), False)


def sub(topic: str, expression: str = "*", version: int = 1) -> SubscriptionData:
    return SubscriptionData(topic, expression, set(), set(), version)


def test_new_channel_new_client_and_new_topics_are_changes() -> None:
    """Covers C-339, C-340."""
    members = ConsumerMembers()
    assert members.register(data(sub("T1")), member("a")).is_changed
    assert not members.register(data(sub("T1")), member("a")).is_changed
    assert members.register(data(sub("T1")), member("a", "another id")).is_changed
    assert members.register(data(sub("T1")), member("b")).is_changed
    assert members.register(data(sub("T1"), sub("T2")), member("a")).is_changed
    assert members.register(data(sub("T2")), member("a")).is_changed
    assert members.groups_of("T1") == set()
    assert members.groups_of("T2") == {"cg"}


def test_newest_expression_wins_silently() -> None:
    """Covers C-340, C-341."""
    members = ConsumerMembers()
    members.register(data(sub("T1", "A", 5)), member("a"))
    assert not members.register(data(sub("T1", "B", 6)), member("a")).is_changed
    assert not members.register(data(sub("T1", "C", 5)), member("a")).is_changed
    found = members.subscription("cg", "T1")
    assert found is not None
    assert found.sub_string == "B"


def test_unregister_returns_who_stays_and_drops_empty_groups() -> None:
    """Covers C-344."""
    members = ConsumerMembers()
    members.register(data(sub("T1")), member("a"))
    members.register(data(sub("T1")), member("b"))
    assert members.unregister("cg", "nobody") == []
    assert members.unregister("cg", "a") == ["b"]
    assert members.unregister("cg", "b") == []
    assert members.names() == []


def test_closed_channel_leaves_all_its_groups() -> None:
    """Covers C-343 b."""
    members = ConsumerMembers()
    for group in ("g1", "g2"):
        members.register(data(group=group), member("a"))
    members.register(data(group="g2"), member("b"))
    left = {name: members.unregister(name, "a") for name in members.groups_of_channel("a")}
    assert left == {"g1": [], "g2": ["b"]}
    assert members.groups_of_channel("a") == []


def test_expired_members_go_and_the_rest_is_known() -> None:
    """Covers C-343 c with the fix of C-551; strictly older than 120 s."""
    members = ConsumerMembers()
    for name in ("a", "b"):
        members.register(data(), member(name))
    members.register(data(), member("c", now_ms=NOW + 1))
    assert members.expire(NOW + 120_000) == ([], {})
    channels, left = members.expire(NOW + 120_001)
    assert sorted(str(channel) for channel in channels) == ["a", "b"]
    assert left == {"cg": ["c"]}


def test_silence_from_before_the_broker_was_at_work_does_not_count() -> None:
    members, producers = ConsumerMembers(), ProducerMembers()
    members.register(data(), member("a"))
    producers.register("pg", member("a"))
    assert members.expire(NOW + 400_000, NOW + 300_000) == ([], {})
    assert producers.expire(NOW + 400_000, NOW + 300_000) == []
    assert members.expire(NOW + 420_001, NOW + 300_000) == (["a"], {"cg": []})
    assert producers.expire(NOW + 420_001, NOW + 300_000) == ["a"]


def test_client_connected_twice_is_listed_once() -> None:
    """Covers C-346."""
    members = ConsumerMembers()
    members.register(data(), member("a", "c1"))
    members.register(data(), member("b", "c1"))
    group = members.group("cg")
    assert group is not None
    assert group.client_ids() == ["c1"]


def test_producers_come_and_go() -> None:
    """Covers C-348."""
    producers = ProducerMembers()
    for name in ("a", "b", "c"):
        producers.register("pg", member(name))
    producers.unregister("pg", "a")
    producers.channel_closed("b")
    assert [m.channel for m in producers.members("pg")] == ["c"]
    assert producers.expire(NOW + 120_001) == ["c"]
    assert producers.members("pg") == []


def test_a_producer_group_without_members_is_named_no_more() -> None:
    producers = ProducerMembers()
    producers.register("pg", member("a"))
    producers.register("other", member("a"))
    assert producers.names() == ["pg", "other"]
    producers.unregister("pg", "a")
    assert producers.names() == ["other"]
    producers.channel_closed("a")
    assert producers.names() == []
    producers.unregister("never seen", "a")
    assert producers.names() == []


def test_heartbeats_name_as_many_groups_as_a_broker_keeps() -> None:
    """One client that makes up names could fill the memory; those that are known go on."""
    producers, consumers = ProducerMembers(), ConsumerMembers()
    for number in range(GROUPS_MAX):
        producers.register(f"g{number}", member("a"))
        consumers.register(data(group=f"g{number}"), member("a"))
    with pytest.raises(BrokerError, match=r"producer group one-more is not created.*end some"):
        producers.register("one-more", member("a"))
    with pytest.raises(BrokerError, match=r"consumer group one-more is not created.*end some"):
        consumers.register(data(group="one-more"), member("a"))
    producers.register("g0", member("b"))
    assert not consumers.register(data(group="g0"), member("a")).is_changed
    producers.unregister("g1", "a")
    producers.register("one-more", member("a"))


def test_members_of_a_producer_group_are_asked_in_turn() -> None:
    """Each further question about one message reaches another, whatever else is asked between."""
    producers = ProducerMembers()
    for name in ("a", "b", "c"):
        producers.register("pg", member(name))
    asked = [producers.channel_for(number, "pg", lambda m: m.channel != "c") for number in range(3)]
    assert asked == ["a", "b", "a"]
    assert producers.channel_for(5, "pg", lambda _: True) == "c"
    assert producers.channel_for(5, "pg", lambda _: False) is None
    assert producers.channel_for(5, "none", lambda _: True) is None


def test_a_producer_that_connected_again_is_asked_over_its_new_connection_alone() -> None:
    """The old one may have gone silent: of its questions every one counts, and none is answered."""
    producers = ProducerMembers()
    for channel, client_id in (("old", "p1"), ("other", "p2"), ("new", "p1")):
        producers.register("pg", Member(channel, client_id, 3, 409, NOW, NOW))
    asked = {producers.channel_for(number, "pg", lambda _: True) for number in range(6)}
    assert asked == {"other", "new"}
    producers.channel_closed("new")
    asked = {producers.channel_for(number, "pg", lambda _: True) for number in range(6)}
    assert asked == {"old", "other"}


def test_a_group_is_what_its_newest_heartbeat_says() -> None:
    """Covers C-339: as an operator is shown it."""
    members = ConsumerMembers()
    members.register(data(sub("T1")), member("a"))
    again = ConsumerData("cg", "CONSUME_ACTIVELY", "BROADCASTING", "CONSUME_FROM_FIRST_OFFSET")
    again.subscription_data_set = [sub("T1")]
    members.register(again, member("b"))
    group = members.group("cg")
    assert group is not None
    assert (group.name, group.consume_type, group.message_model, group.consume_from_where) == (
        "cg",
        "CONSUME_ACTIVELY",
        "BROADCASTING",
        "CONSUME_FROM_FIRST_OFFSET",
    )
    assert group.channels() == ["a", "b"]
    assert group.client_ids() == ["id-a", "id-b"]
    assert members.group("other") is None
    assert members.subscription("other", "T1") is None
    assert members.subscription("cg", "T2") is None


def test_one_silent_client_leaves_all_its_groups_at_once() -> None:
    """Covers C-343 c: each group that has others left is told."""
    members, producers = ConsumerMembers(), ProducerMembers()
    for group in ("g1", "g2"):
        members.register(data(group=group), member("a"))
        producers.register(group, member("a"))
    members.register(data(group="g2"), member("b", now_ms=NOW + 60_000))
    assert producers.expire(NOW + 120_000) == []
    assert members.expire(NOW + 120_001) == (["a", "a"], {"g1": [], "g2": ["b"]})
    assert members.names() == ["g2"]
    assert producers.expire(NOW + 120_001) == ["a", "a"]
    assert producers.names() == []


def test_a_heartbeat_keeps_a_member() -> None:
    members, producers = ConsumerMembers(), ProducerMembers()
    for heard_ms in (NOW, NOW + 100_000):
        members.register(data(), member("a", now_ms=heard_ms))
        producers.register("pg", member("a", now_ms=heard_ms))
    assert members.expire(NOW + 220_000) == ([], {})
    assert producers.expire(NOW + 220_000) == []


def test_a_client_is_reached_by_its_newest_channel_until_that_closes() -> None:
    """Covers C-348: a reply is sent to the client that asked."""
    producers = ProducerMembers()
    producers.register("pg", member("a", "client"))
    producers.register("pg", member("b", "client"))
    producers.register("pg", member("c", "another"))
    assert producers.channel_of("client") == "b"
    producers.channel_closed("a")
    assert producers.channel_of("client") == "b"
    producers.channel_closed("b")
    assert producers.channel_of("client") is None
    assert producers.channel_of("another") == "c"
    assert [each.channel for each in producers.members("pg")] == ["c"]


def test_a_channel_has_one_client_of_a_group() -> None:
    """Covers C-348: a peer that made up ids filled the memory, as long as it stayed connected."""
    producers = ProducerMembers()
    for number in range(100):
        producers.register("pg", member("a", f"id{number}"))
    producers.register("other", member("a", "of the other group"))
    assert [producers.channel_of(f"id{number}") for number in (0, 98, 99)] == [None, None, "a"]
    assert producers.channel_of("of the other group") == "a"
    assert len(producers._clients) == 2


def test_a_client_is_reached_as_long_as_one_of_its_groups_is_there() -> None:
    """Covers C-348: whichever way the others went."""
    producers = ProducerMembers()
    for group in ("g1", "g2", "g3", "g4"):
        producers.register(group, member("a", "client"))
    producers.unregister("g1", "a")
    producers.unregister("g1", "a")
    producers.register("g2", member("a", "another"))
    producers.register("g3", member("a", "client", NOW + 1))
    assert producers.expire(NOW + 120_001) == ["a", "a"]
    assert producers.channel_of("another") is None
    assert producers.channel_of("client") == "a"
    producers.unregister("g3", "a")
    assert producers.channel_of("client") is None
    assert not producers._clients
    assert not producers._groups_by_id


@pytest.mark.parametrize(
    ("client_id", "access_key", "text"),
    [
        ("i" * 256, None, "a client id has 255 characters at most; this one has 256"),
        ("i" * 255, "k" * 256, "an access key has 255 characters at most; this one has 256"),
    ],
)
def test_a_client_of_endless_name_is_no_member(
    client_id: str, access_key: str | None, text: str
) -> None:
    """What a peer says is kept as long as it stays."""
    with pytest.raises(BrokerError, match=text):
        Member("a", client_id, 3, 409, NOW, NOW, access_key)
    assert Member("a", "i" * 255, 3, 409, NOW, NOW, "k" * 255).client_id == "i" * 255


def test_subscriptions_to_topics_that_cannot_be_are_refused() -> None:
    """The retry topic of a group has 255 characters at most."""
    members = ConsumerMembers()
    members.register(data(sub("t" * 255)), member("a"))
    with pytest.raises(BrokerError, match="a topic has 255 characters at most; this one has 256"):
        members.register(data(sub("t" * 256), group="other"), member("a"))
    assert members.names() == ["cg"]


def tags(topic: str, count: int, version: int = 1) -> SubscriptionData:
    found = {f"tag{number:05d}" for number in range(count)}
    return SubscriptionData(topic, "||".join(sorted(found)), found, set(range(count)), version)


def test_subscriptions_take_so_many_bytes_together() -> None:
    """Covers C-340: 150 groups of 8,000 tags each filled the memory; conditions had a bound.

    What is there goes on, and the rest of a heartbeat is taken.
    """
    members = ConsumerMembers(bytes_max=600_000)
    assert members.register(data(tags("T1", 1_000)), member("a")) == (True, [])
    many = data(tags("T2", 3_000), sub("T3"), group="greedy")
    assert members.register(many, member("b")) == (True, ["T2"])
    assert members.register(many, member("b")) == (False, ["T2"])
    assert members.groups_of("T3") == {"greedy"}
    assert members.register(data(tags("T1", 5_000, 2)), member("a")) == (False, ["T1"])
    kept = members.subscription("cg", "T1")
    assert kept is not None
    assert len(kept.tags_set) == 1_000
    assert members.register(data(tags("T1", 10, 3)), member("a")) == (False, [])
    assert members.register(many, member("b")) == (True, [])


def test_subscriptions_leave_nothing_behind() -> None:
    members = ConsumerMembers()
    for version, topics in enumerate((("T1", "T2"), ("T2", "T3"), ()), 1):
        members.register(data(*(tags(topic, version, version) for topic in topics)), member("a"))
        assert bool(members._bytes) == bool(topics)
    members.register(data(tags("T1", 5)), member("a"))
    members.register(data(tags("T1", 5)), member("b"))
    members.unregister("cg", "a")
    assert members._bytes
    members.unregister("cg", "b")
    assert members._bytes == 0


def test_the_id_of_a_client_stays_with_the_account_that_has_it() -> None:
    """Otherwise its replies would go to whoever says he is it."""
    producers = ProducerMembers()
    producers.register("pg", Member("a", "client", 3, 409, NOW, NOW, "salesdesk"))
    producers.register("pg", Member("b", "client", 3, 409, NOW, NOW, "another-desk"))
    assert producers.channel_of("client") == "a"
    producers.register("pg", Member("c", "client", 3, 409, NOW, NOW, "salesdesk"))
    assert producers.channel_of("client") == "c"
