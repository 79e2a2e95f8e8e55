"""Topics, groups, offsets, locks, rates: the broker's tables without a broker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rocketstream.errors import BrokerError
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import (
    DataVersion,
    QueueLockTable,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from rocketstream.server.broker.core.groups import SYSTEM_GROUPS, GroupTable
from rocketstream.server.broker.core.locks import QueueLocks
from rocketstream.server.broker.core.offsets import (
    ConsumerOffsets,
    commit_refusal,
    correction_offsets,
)
from rocketstream.server.broker.core.stats import Counter
from rocketstream.server.broker.core.topics import (
    SystemTopicSettings,
    TopicTable,
    system_topics,
)

NOW = 1_700_000_000_000
SETTINGS = SystemTopicSettings("C1", "broker-a")


def topics(*, auto_create: bool = True) -> TopicTable:
    table = TopicTable(auto_create=auto_create)
    settings = SystemTopicSettings("C1", "broker-a", auto_create=auto_create)
    table.ensure_system_topics(system_topics(settings), NOW)
    return table


def test_created_topic_has_the_smaller_number_of_queues_and_no_inherit() -> None:
    """Covers C-422."""
    table = topics()
    config = table.wanted_by_send("T1", "TBW102", 4)
    assert config == TopicConfig("T1", 4, 4, 6)
    table.put(config, NOW)
    assert table.wanted_by_send("T2", "TBW102", 99) == TopicConfig("T2", 8, 8, 6)
    assert table.wanted_by_send("T3", "C1", 99) == TopicConfig("T3", 16, 16, 6)
    assert table.wanted_by_send("T1", "TBW102", 1) is config


def test_no_template_no_topic() -> None:
    """Covers C-422, C-421: TBW102 exists only with auto-creation."""
    table = topics(auto_create=False)
    assert table.get("TBW102") is None
    assert table.wanted_by_send("T1", "TBW102", 4) is None
    table.put(TopicConfig("TBW102", 8, 8, 7), NOW)
    assert table.wanted_by_send("T1", "TBW102", 4) is None


def test_every_change_moves_the_data_version() -> None:
    """Covers W 2.7: the name server compares it."""
    table = topics()
    before = table.data_version.counter
    table.ensure("%RETRY%g", 1, NOW + 5)
    assert table.data_version.counter == before + 1
    assert table.data_version.timestamp == NOW + 5
    assert table.ensure("%RETRY%g", 1, NOW) == (TopicConfig("%RETRY%g", 1, 1, 6), False)
    assert table.delete("%RETRY%g", NOW)
    assert not table.delete("%RETRY%g", NOW)
    assert table.data_version.counter == before + 2
    assert list(table.wrapper(["TBW102", "gone"]).topic_config_table) == ["TBW102"]


def test_every_change_of_a_group_moves_the_data_version() -> None:
    """By one, and on from that of the file; what changes nothing does not."""
    table = GroupTable(auto_create=True)
    table.load(SubscriptionGroupWrapper({}, DataVersion(counter=7, timestamp=NOW - 9)))
    found = table.wrapper().data_version
    assert (found.counter, found.timestamp) == (7, NOW - 9)
    table.find("g", NOW + 1)
    assert table.wrapper().data_version == DataVersion(counter=8, timestamp=NOW + 1)
    table.find("g", NOW + 2)
    assert not table.delete("h", NOW + 2)
    assert table.wrapper().data_version == DataVersion(counter=8, timestamp=NOW + 1)
    assert table.delete("g", NOW + 3)
    assert table.wrapper().data_version == DataVersion(counter=9, timestamp=NOW + 3)
    assert table.generation == 9


def test_more_delay_levels_grow_the_schedule_topic() -> None:
    table = topics()
    more = SystemTopicSettings("C1", "broker-a", schedule_queues=20)
    assert table.ensure_system_topics(system_topics(more), NOW)
    config = table.get("SCHEDULE_TOPIC_XXXX")
    assert config is not None
    assert config.write_queue_nums == 20
    assert not table.ensure_system_topics(system_topics(more), NOW)


def test_unknown_group_is_created_only_when_allowed_and_well_named() -> None:
    """Covers C-350, C-351."""
    open_table, closed_table = GroupTable(auto_create=True), GroupTable(auto_create=False)
    config, is_new = open_table.find("g1", NOW)
    assert config is not None
    assert is_new
    assert open_table.find("g1", NOW) == (config, False)
    assert open_table.find("a b", NOW) == (None, False)
    assert closed_table.find("g1", NOW) == (None, False)
    assert closed_table.find("CID_RMQ_SYS_TRANS", NOW)[1]


def test_offsets_count_changes_only() -> None:
    """Covers C-323 to C-325 and C-330: what did not change is not written again."""
    offsets = ConsumerOffsets()
    assert offsets.commit("g", "T", 0, 5) is None
    assert offsets.commit("g", "T", 0, 5) == 5
    assert offsets.generation == 1
    assert offsets.commit("g", "T", 0, 3) == 5
    assert offsets.generation == 2
    assert offsets.query("g", "T", 0) == 3
    assert offsets.query("g", "T", 1) is None
    offsets.commit("g2", "T", 1, 1)
    offsets.commit("g", "U", 0, 1)
    assert offsets.groups_of("T") == {"g", "g2"}
    assert offsets.topics_of("g") == {"T", "U"}
    snapshot = offsets.snapshot()
    offsets.remove_group("g")
    assert offsets.topics_of("g") == set()
    offsets.remove_topic("T")
    assert offsets.groups_of("T") == set()
    assert snapshot.offset_table == {"T@g": {0: 3}, "T@g2": {1: 1}, "U@g": {0: 1}}
    restored = ConsumerOffsets()
    restored.load(snapshot)
    assert restored.query("g", "T", 0) == 3


@pytest.mark.parametrize(
    ("queue_id", "offset", "queue_nums", "word"),
    [
        (0, 0, None, "topic"),
        (4, 0, 4, "queue 4"),
        (-1, 0, 4, "queue -1"),
        (0, -1, 4, "negative"),
        (0, 8, 4, "beyond the end of queue 0, 7"),
        (0, 10**15, 4, "beyond"),
    ],
)
def test_commit_of_nonsense_is_refused(
    queue_id: int, offset: int, queue_nums: int | None, word: str
) -> None:
    """Covers the fix of C-567."""
    assert word in (commit_refusal(queue_id, offset, queue_nums, 7) or "")
    assert commit_refusal(3, 7, 4, 7) is None


def test_offsets_beyond_their_queues_are_moved_to_the_end() -> None:
    """A repaired store has lost messages: the group goes on with the next one."""
    offsets = ConsumerOffsets()
    for queue_id, offset in ((0, 5), (1, 6), (2, 0)):
        offsets.commit("g", "T", queue_id, offset)
    before = offsets.generation
    moved = offsets.clamp(
        lambda topic, queue_id: {("T", 0): 5, ("T", 1): 5}.get((topic, queue_id), 0)
    )
    assert moved == ["T@g queue 1: 6 to 5"]
    assert offsets.of("g", "T") == {0: 5, 1: 5, 2: 0}
    assert offsets.generation == before + 1
    assert offsets.clamp(lambda _topic, _queue_id: 9) == []


def test_file_of_topics_holds_what_the_table_holds() -> None:
    """Whatever was put, replaced, deleted or loaded: the entries kept for the file follow."""
    table = topics()
    table.put(TopicConfig("T1", 1, 1), NOW)
    table.put(TopicConfig("T1", 2, 2), NOW)
    table.put(TopicConfig("T2", 3, 3), NOW)
    table.delete("T2", NOW)
    table.propose("T1", TopicConfig("T1", 5, 5))
    table.accept("T1", TopicConfig("T1", 5, 5), NOW)
    text = table.wrapper().encode(pretty=True)
    assert table.snapshot().encode(pretty=True) == text
    loaded = TopicTable(auto_create=True)
    loaded.load(table.wrapper())
    loaded.put(TopicConfig("T3"), NOW + 1)
    assert loaded.snapshot().encode(pretty=True) == loaded.wrapper().encode(pretty=True)


def held_by_file(table: TopicTable) -> set[str]:
    text = table.snapshot().encode(pretty=True)
    return set(TopicConfigSerializeWrapper.decode(text).topic_config_table)


def test_proposed_topic_is_written_before_it_counts() -> None:
    table, config = topics(), TopicConfig("T1", 4, 4)
    version, generation = table.data_version, table.generation
    table.propose("T1", config)
    assert "T1" in held_by_file(table)
    assert (table.get("T1"), table.data_version) == (None, version)
    assert table.generation > generation
    generation = table.generation
    table.accept("T1", config, NOW)
    assert table.get("T1") is config
    assert table.data_version != version
    assert table.generation == generation, "it would be written twice"


def test_withdrawn_topic_is_what_it_was() -> None:
    table, config = topics(), TopicConfig("T1", 4, 4)
    table.propose("T1", config)
    table.withdraw("T1")
    assert "T1" not in held_by_file(table)
    table.put(config, NOW)
    table.propose("T1", None)
    assert "T1" not in held_by_file(table)
    table.withdraw("T1")
    assert "T1" in held_by_file(table)


def test_topic_made_anew_while_it_is_being_deleted_stays_in_the_file() -> None:
    table, config = topics(), TopicConfig("T1", 4, 4)
    table.put(TopicConfig("T1", 8, 8), NOW)
    table.propose("T1", None)
    table.propose("T1", config)
    table.accept("T1", None, NOW)
    assert "T1" in held_by_file(table)
    assert table.get("T1") is None
    table.accept("T1", config, NOW)
    assert table.get("T1") is config
    assert "T1" in held_by_file(table)


def test_proposed_topics_count_for_the_bound() -> None:
    table = TopicTable(auto_create=True, topics_max=1)
    table.propose("T1", TopicConfig("T1"))
    table.check_room("T1")
    with pytest.raises(BrokerError, match="keeps 1 topics"):
        table.check_room("T2")


def test_a_generation_counts_the_changes_and_never_comes_again() -> None:
    """A writer that compares it would take a table it has not saved for the one it has."""
    table = topics()
    seen = [table.generation]
    for change in (
        lambda: table.put(TopicConfig("T1", 4, 4, 6), NOW),
        lambda: table.delete("T1", NOW),
        lambda: table.put(TopicConfig("T2", 4, 4, 6), NOW),
        lambda: table.propose("T3", TopicConfig("T3")),
        lambda: table.put(TopicConfig("T2", 8, 8, 6), NOW),
        lambda: table.delete("T2", NOW),
    ):
        change()
        seen.append(table.generation)
    assert seen == list(range(seen[0], seen[0] + 7))


def test_the_longest_name_of_a_group_has_room() -> None:
    offsets = ConsumerOffsets()
    assert offsets.no_room("g" * 255, [("T", 0)]) is None
    assert offsets.no_room("g" * 256, [("T", 0)]) is not None


def test_tables_have_bounds() -> None:
    """A peer that makes up names is refused before the broker runs out of memory."""
    table = TopicTable(auto_create=True, topics_max=2)
    table.put(TopicConfig("TBW102", 8, 8, 7), NOW)
    config = table.put(TopicConfig("T1", 4, 4, 6), NOW)
    with pytest.raises(BrokerError, match="T2 is not created: this broker keeps 2 topics"):
        table.wanted_by_send("T2", "TBW102", 4)
    with pytest.raises(BrokerError, match="%RETRY%g is not created"):
        table.ensure("%RETRY%g", 1, NOW)
    assert table.ensure("T1", 4, NOW) == (config, False)
    assert table.ensure("SCHEDULE_TOPIC_XXXX", 18, NOW)[1]

    groups = GroupTable(auto_create=True, groups_max=1)
    assert groups.find("g1", NOW)[1]
    with pytest.raises(BrokerError, match="g2 is not created: this broker keeps 1 groups"):
        groups.find("g2", NOW)
    assert not groups.find("g1", NOW)[1]

    offsets = ConsumerOffsets(offsets_max=2)
    offsets.commit("g", "T", 0, 1)
    offsets.commit("g", "T", 1, 1)
    assert offsets.no_room("g", [("T", 1)]) is None
    assert "keeps 2 offsets" in (offsets.no_room("g", [("T", 2)]) or "")
    assert "256 characters" in (offsets.no_room("g" * 256, [("T", 0)]) or "")
    offsets.clone("g", "h", "T")
    offsets.remove_group("g")
    assert offsets.no_room("g", [("T", 0)]) is not None
    offsets.remove_topic("T")
    assert offsets.no_room("g", [("T", 0), ("T", 1)]) is None
    assert offsets.no_room("g", [("T", 0), ("T", 1), ("T", 2)]) is not None

    locks = QueueLocks(held_max=1)
    queues = [MessageQueue("T", "b", number) for number in range(2)]
    assert locks.lock("g", "c1", queues, NOW) == {queues[0]}
    locks.unlock("g", "c1", queues)
    assert locks.lock("g", "c1", queues[1:], NOW) == {queues[1]}


def test_lease_is_renewed_refused_and_taken_over() -> None:
    """Covers C-353 to C-355: strictly more than 60 s."""
    locks = QueueLocks()
    queue = MessageQueue("T", "b", 0)
    assert locks.lock("g", "c1", [queue], NOW) == {queue}
    assert locks.lock("g", "c2", [queue], NOW + 60_000) == set()
    assert locks.holder("g", queue, NOW + 60_000) == "c1"
    assert locks.is_locked("g", NOW + 60_000)
    assert locks.holder("g", queue, NOW + 60_001) is None
    assert not locks.is_locked("g", NOW + 60_001)
    assert locks.lock("g", "c2", [queue], NOW + 60_001) == {queue}
    locks.unlock("g", "c1", [queue])
    assert locks.holder("g", queue, NOW + 60_001) == "c2"
    locks.unlock("g", "c2", [queue])
    assert locks.holder("g", queue, NOW + 60_001) is None
    assert locks.lock("other", "c1", [queue], NOW) == {queue}


def test_locks_nobody_knows_are_waited_out() -> None:
    """Covers C-356: 30 s a holder may trust its lease; the table is written down after that."""
    locks = QueueLocks()
    queue = MessageQueue("T", "b", 0)
    locks.wait_out(NOW)
    assert locks.lock("g", "c1", [queue], NOW + 30_000) == set()
    locks.expire(NOW + 30_000)
    assert locks.generation == 0
    locks.expire(NOW + 30_001)
    assert locks.generation == 1
    assert locks.lock("g", "c1", [queue], NOW + 30_001) == {queue}


def test_locks_say_since_when_a_queue_has_its_holder() -> None:
    """Renewals change nothing that has to be written down."""
    locks = QueueLocks()
    queues = [MessageQueue("T", "b", number) for number in range(2)]
    locks.lock("g", "c1", queues[:1], NOW)
    locks.lock("g", "c1", queues, NOW + 50_000)
    assert [locks.since("g", queue) for queue in queues] == [1, 2]
    assert locks.lock("g", "c2", queues, NOW + 110_000) == set()
    assert locks.lock("g", "c2", queues[:1], NOW + 110_001) == {queues[0]}
    assert [locks.since("g", queue) for queue in queues] == [3, 2]


def test_rates_are_of_their_windows() -> None:
    """Covers the putTps figure of code 28."""
    counter = Counter()
    assert counter.text(NOW) == "0.0 0.0 0.0"
    for second in range(61):
        counter.sample(NOW + second * 1000)
        counter.total += 10 if second < 50 else 100
    now_ms = NOW + 61_000
    assert counter.rate(10_000, now_ms) == 100.0
    assert 24 < counter.rate(60_000, now_ms) < 27
    assert counter.rate(600_000, now_ms) == pytest.approx(1600 / 61)


def test_samples_are_taken_once_a_second_and_kept_ten_minutes() -> None:
    """Ticks that come twice as often, or late, neither crowd out the past nor lose it."""
    counter = Counter()
    for half_seconds in range(4_000):
        counter.total += 1
        counter.sample(NOW + half_seconds * 250)
    end_ms = NOW + 3_999 * 250
    assert counter.rates(end_ms) == [4.0, 4.0, 4.0]
    assert len(counter._samples) == 1203


def test_a_retry_topic_becomes_that_of_a_unit_and_stays_it() -> None:
    table = topics()
    plain, is_new = table.ensure("%RETRY%g", 1, NOW)
    assert (plain.topic_sys_flag, is_new) == (0, True)
    marked, is_changed = table.ensure("%RETRY%g", 1, NOW, unit=True)
    assert (marked, is_changed) == (replace(plain, topic_sys_flag=2), True)
    assert table.get("%RETRY%g") is marked
    assert table.ensure("%RETRY%g", 1, NOW, unit=True) == (marked, False)
    assert table.ensure("%RETRY%g", 1, NOW) == (marked, False)
    assert table.ensure("%RETRY%h", 1, NOW, unit=True)[0].topic_sys_flag == 2


def test_new_tables_have_the_first_version_of_no_time() -> None:
    for version in (
        TopicTable(auto_create=True).data_version,
        GroupTable(auto_create=True).wrapper().data_version,
    ):
        assert version == DataVersion(counter=0, timestamp=0)
    assert GroupTable(auto_create=True).generation == 0
    assert TopicTable(auto_create=True).generation == 0


def test_only_a_topic_that_was_there_changes_the_version_when_it_is_deleted() -> None:
    table = topics()
    table.put(TopicConfig("T1", 4, 4), NOW)
    before = table.data_version
    assert not table.delete("T2", NOW + 1)
    assert table.data_version == before
    assert table.delete("T1", NOW + 2)
    assert table.data_version == DataVersion(counter=before.counter + 1, timestamp=NOW + 2)


def test_a_group_that_is_behind_the_others_is_told_by_the_greatest_number() -> None:
    """Covers C-332: level with them it is not; what has expired, or is left out, does not count."""
    offsets = ConsumerOffsets()
    for group, *values in (("a", 10, 10, 10, 2), ("b", 20, 20, 20, 9), ("me", 9, 10, 11, 9)):
        for queue_id, offset in enumerate(values):
            offsets.commit(group, "T", queue_id, offset)
    offsets.commit("me", "T", 7, 1)
    told = correction_offsets(offsets, "T", "me", {"me"}, lambda queue_id: 3)
    greatest = 2**63 - 1
    assert told == {0: greatest, 1: 10, 2: 10, 3: 9, 7: greatest}
    told = correction_offsets(offsets, "T", "me", {"me", "a"}, lambda queue_id: 9)
    assert told == {0: greatest, 1: greatest, 2: greatest, 3: 9, 7: greatest}


def test_a_broker_starts_with_the_topics_clients_expect() -> None:
    """Covers C-421: their queues and rights, as Apache's broker makes them."""
    found = {
        config.topic_name: (config.read_queue_nums, config.write_queue_nums, config.perm)
        for config in system_topics(SETTINGS)
    }
    assert found == {
        "SELF_TEST_TOPIC": (1, 1, 6),
        "BenchmarkTest": (1024, 1024, 6),
        "C1": (16, 16, 7),
        "broker-a": (1, 1, 7),
        "OFFSET_MOVED_EVENT": (1, 1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 18, 6),
        "C1_REPLY_TOPIC": (1, 1, 6),
        "TBW102": (8, 8, 7),
    }
    traced = {config.topic_name: config for config in system_topics(replace(SETTINGS, trace=True))}
    assert set(traced) - set(found) == {"RMQ_SYS_TRACE_TOPIC"}
    assert traced["RMQ_SYS_TRACE_TOPIC"] == TopicConfig("RMQ_SYS_TRACE_TOPIC", 1, 1, 6)


def test_topics_of_the_broker_itself_are_known_as_such() -> None:
    """Those it started with, whatever they are called, and those no broker lets anybody make."""
    table = topics()
    table.put(TopicConfig("T1", 4, 4), NOW)
    names = ["C1", "broker-a", "TBW102", "RMQ_SYS_TRANS_HALF_TOPIC", "T1", "another"]
    assert [table.is_system(name) for name in names] == [True, True, True, True, False, False]
    assert table.system_topic_names() == sorted(
        config.topic_name for config in system_topics(SETTINGS)
    )
    assert sorted(table) == sorted([*table.system_topic_names(), "T1"])


@pytest.mark.parametrize(("asked", "made"), [(-1, 1), (0, 1), (1, 1), (8, 8), (9, 8)])
def test_a_send_gets_as_many_queues_as_it_asks_for_up_to_the_templates(
    asked: int, made: int
) -> None:
    """Covers C-422, put right: nobody makes a topic of no queues, to which nobody could send."""
    config = topics().wanted_by_send("T1", "TBW102", asked)
    assert config is not None
    assert (config.read_queue_nums, config.write_queue_nums) == (made, made)


def test_a_template_lends_its_rights_only_if_it_may_be_inherited() -> None:
    """Covers C-422: without the right to write, for example, the new topic has none either."""
    table = topics()
    table.put(TopicConfig("plain", 8, 8, 6), NOW)
    table.put(TopicConfig("read only", 8, 8, 5, topic_sys_flag=2), NOW)
    assert table.wanted_by_send("T1", "plain", 4) is None
    assert table.wanted_by_send("T1", "nowhere", 4) is None
    assert table.wanted_by_send("T1", "read only", 4) == TopicConfig("T1", 4, 4, 4)
    assert table.wanted_by_send("T1", "TBW102", 4, unit=True) == TopicConfig(
        "T1", 4, 4, 6, topic_sys_flag=1
    )


def test_where_topics_are_not_created_by_themselves_another_template_still_counts() -> None:
    """Covers C-422: the setting is about TBW102 alone."""
    table = topics(auto_create=False)
    assert table.wanted_by_send("T1", "C1", 4) == TopicConfig("T1", 4, 4, 6)


def test_the_version_of_topics_goes_on_from_that_of_their_file() -> None:
    """Covers W 2.7: a restarted broker's table must not look older than what was registered."""
    table = TopicTable(auto_create=True)
    table.put(TopicConfig("gone"), NOW)
    table.load(
        TopicConfigSerializeWrapper(
            {"T1": TopicConfig("T1", 4, 4)}, DataVersion(counter=7, timestamp=NOW - 9)
        )
    )
    assert list(table) == ["T1"]
    assert table.data_version == DataVersion(counter=7, timestamp=NOW - 9)
    table.put(TopicConfig("T2"), NOW)
    assert table.data_version == DataVersion(counter=8, timestamp=NOW)
    table.load(TopicConfigSerializeWrapper({"T3": TopicConfig("T3")}))
    assert table.data_version == DataVersion(counter=0, timestamp=0)
    assert held_by_file(table) == {"T3"}


def test_stored_topics_that_have_enough_queues_stay_as_they_are() -> None:
    """Fewer delay levels than before lose no queue; nor does what an operator made larger."""
    table = topics()
    larger = table.put(TopicConfig("SELF_TEST_TOPIC", 5, 5, 6), NOW)
    assert not table.ensure_system_topics(
        system_topics(replace(SETTINGS, schedule_queues=3)), NOW + 1
    )
    assert table.get("SELF_TEST_TOPIC") is larger
    schedule = table.get("SCHEDULE_TOPIC_XXXX")
    assert schedule is not None
    assert schedule.write_queue_nums == 18


def test_of_two_proposals_for_a_topic_the_last_withdrawn_gives_it_back() -> None:
    """Until then the file may hold either; after it, exactly what counts."""
    table = topics()
    config = table.put(TopicConfig("T1", 4, 4), NOW)
    table.propose("T1", None)
    table.propose("T1", None)
    table.withdraw("T1")
    assert "T1" not in held_by_file(table)
    table.withdraw("T1")
    assert "T1" in held_by_file(table)
    table.propose("T1", TopicConfig("T1", 8, 8))
    table.withdraw("T1")
    assert table.snapshot().encode() == table.wrapper().encode(pretty=True)
    assert table.get("T1") is config


def test_what_is_written_before_it_counts_has_a_version_nobody_was_told() -> None:
    """A broker that ended before it told the name servers was to them as it had been, for good."""
    table = topics()
    told = [table.data_version]
    table.propose("T1", TopicConfig("T1", 4, 4))
    table.propose("T2", TopicConfig("T2", 4, 4))
    written = [table.snapshot().version]
    table.accept("T1", TopicConfig("T1", 4, 4), NOW)
    told.append(table.data_version)
    written.append(table.snapshot().version)
    table.accept("T2", TopicConfig("T2", 4, 4), NOW)
    told.append(table.data_version)
    assert table.snapshot().version == table.data_version
    assert not {each.counter for each in written} & {each.counter for each in told}


def test_an_accepted_deletion_deletes() -> None:
    table = topics()
    table.put(TopicConfig("T1", 4, 4), NOW)
    before = table.data_version.counter
    table.propose("T1", None)
    table.accept("T1", None, NOW + 3)
    assert table.get("T1") is None
    assert "T1" not in held_by_file(table)
    assert table.data_version == DataVersion(counter=before + 1, timestamp=NOW + 3)
    table.propose("gone", None)
    table.accept("gone", None, NOW + 4)
    assert table.get("gone") is None


def test_a_proposal_of_what_the_file_holds_anyway_is_not_written() -> None:
    table = topics()
    table.put(TopicConfig("T1", 4, 4), NOW)
    before = table.generation
    table.propose("T1", TopicConfig("T1", 4, 4))
    assert table.generation == before
    table.propose("T1", TopicConfig("T1", 5, 5))
    assert table.generation == before + 1
    table.propose("T1", None)
    assert table.generation == before + 2


def test_only_topics_of_groups_count_for_the_bound_when_the_broker_needs_one() -> None:
    table = TopicTable(auto_create=True, topics_max=0)
    for name in ("%RETRY%g", "%DLQ%g"):
        with pytest.raises(BrokerError, match="those of retries and dead letters included"):
            table.ensure(name, 1, NOW)
    config, is_new = table.ensure("RMQ_SYS_TRANS_HALF_TOPIC", 1, NOW)
    assert (config, is_new) == (TopicConfig("RMQ_SYS_TRANS_HALF_TOPIC", 1, 1, 6), True)


def test_part_of_the_table_has_the_version_of_the_whole() -> None:
    """Covers W 2.7: what is registered by itself is compared with the whole."""
    table = topics()
    table.put(TopicConfig("T1", 4, 4), NOW + 1)
    part = table.wrapper(["T1", "gone"])
    assert part.topic_config_table == {"T1": TopicConfig("T1", 4, 4)}
    assert part.data_version == table.data_version
    assert table.wrapper([]).topic_config_table == {}
    assert set(table.wrapper().topic_config_table) == set(table)


def test_a_broker_starts_with_the_groups_of_tools() -> None:
    """Covers C-349: those missing are added, a stored one stays what it is."""
    table = GroupTable(auto_create=False)
    mine = SubscriptionGroupConfig("TOOLS_CONSUMER", retry_max_times=3)
    table.put(mine, NOW)
    assert table.ensure_system_groups(NOW + 1)
    assert set(table) == {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
    }
    assert table.get("TOOLS_CONSUMER") is mine
    assert table.get("CID_ONSAPI_PULL") == SubscriptionGroupConfig("CID_ONSAPI_PULL")
    assert table.wrapper().data_version == DataVersion(
        counter=len(SYSTEM_GROUPS), timestamp=NOW + 1
    )
    assert not table.ensure_system_groups(NOW + 2)
    loaded = GroupTable(auto_create=False)
    loaded.put(SubscriptionGroupConfig("gone"), NOW)
    loaded.load(table.wrapper())
    assert set(loaded) == set(table)
    assert loaded.wrapper() == table.wrapper()


def test_a_group_that_is_set_has_room_by_the_bound() -> None:
    table = GroupTable(auto_create=True, groups_max=2)
    table.check_room("g1")
    table.put(SubscriptionGroupConfig("g1"), NOW)
    table.check_room("g2")
    table.put(SubscriptionGroupConfig("g2"), NOW)
    table.check_room("g2")
    with pytest.raises(BrokerError, match="keeps 2 groups; delete some first") as refused:
        table.check_room("g3")
    assert refused.value.code == 1


def test_offsets_are_counted_through_copies_removals_and_files() -> None:
    """Covers C-330: the bound is of what is kept now."""
    offsets = ConsumerOffsets(offsets_max=6)
    for queue_id in range(3):
        offsets.commit("g", "T", queue_id, 9)
    offsets.commit("h", "T", 0, 1)
    offsets.commit("h", "T", 7, 1)
    offsets.clone("g", "h", "T")
    assert offsets.of("h", "T") == {0: 9, 1: 9, 2: 9}
    assert "keeps 6 offsets" in (offsets.no_room("i", [("T", 0)]) or "")
    loaded = ConsumerOffsets(offsets_max=6)
    loaded.load(offsets.snapshot())
    assert loaded.no_room("i", [("T", 0)]) is not None
    assert loaded.no_room("h", [("T", 2)]) is None
    offsets.commit("h", "T", 0, 2)
    assert offsets.query("g", "T", 0) == 9, "a copy is one of its own"
    offsets.remove_group("h")
    assert offsets.no_room("i", [("T", 0)]) is None
    for queue_id in range(3):
        offsets.commit("i", "T", queue_id, 9)
    assert offsets.no_room("i", [("T", 3)]) is not None


def test_each_change_of_offsets_is_one_to_write() -> None:
    offsets = ConsumerOffsets()
    assert offsets.generation == 0
    for group, topic in (("g", "T"), ("g", "U"), ("h", "T"), ("h", "U")):
        offsets.commit(group, topic, 0, 5)
    assert offsets.generation == 4
    offsets.clone("nobody", "h", "T")
    assert offsets.generation == 4
    offsets.clone("g", "i", "T")
    assert offsets.generation == 5
    assert offsets.clamp(lambda topic, queue_id: 4 if topic == "T" else 5) == [
        "T@g queue 0: 5 to 4",
        "T@h queue 0: 5 to 4",
        "T@i queue 0: 5 to 4",
    ]
    assert offsets.generation == 8
    offsets.remove_group("h")
    assert offsets.generation == 10
    offsets.remove_topic("T")
    assert offsets.generation == 12
    assert offsets.topics_of("g") == {"U"}
    offsets.remove_topic("T")
    assert offsets.generation == 12


def test_a_commit_within_the_queue_is_taken() -> None:
    """Covers C-567: up to the end, where the next message comes."""
    assert [commit_refusal(queue_id, 0, 4, 0) for queue_id in (0, 3)] == [None, None]
    assert "offset 1 is beyond the end of queue 3, 0" in (commit_refusal(3, 1, 4, 0) or "")


def test_holders_of_a_file_have_thirty_seconds_before_others_get_their_queues() -> None:
    """Covers C-356: the age of a lease is unknown after the broker was away."""
    queue, other = (MessageQueue("T", "b", number) for number in range(2))
    table = QueueLockTable({"g": {queue: "c1", other: "c1"}})
    locks = QueueLocks(held_max=2)
    locks.load(table, NOW)
    assert locks.generation == 0
    assert locks.snapshot() == table
    assert locks.lock("h", "c2", [queue], NOW) == set(), "two is the most, as loaded"
    assert locks.holder("g", queue, NOW + 30_000) == "c1"
    assert locks.lock("g", "c2", [queue], NOW + 30_000) == set()
    assert locks.lock("g", "c1", [other], NOW + 30_000) == {other}
    assert locks.generation == 0, "a renewal changes nothing that is written"
    assert locks.lock("g", "c2", [queue, other], NOW + 30_001) == {queue}
    assert (locks.since("g", queue), locks.since("g", other)) == (1, 0)
    assert locks.snapshot() == QueueLockTable({"g": {queue: "c2", other: "c1"}})


def test_leases_nobody_renews_are_forgotten_and_their_place_is_free() -> None:
    locks = QueueLocks(held_max=2)
    queues = [MessageQueue("T", "b", number) for number in range(3)]
    assert locks.lock("g", "c1", queues, NOW) == set(queues[:2])
    assert locks.lock("h", "c1", queues, NOW) == set()
    assert locks.snapshot() == QueueLockTable({"g": dict.fromkeys(queues[:2], "c1")})
    locks.lock("g", "c1", queues[:1], NOW + 1)
    assert locks.generation == 2
    locks.expire(NOW + 60_000)
    assert locks.generation == 2
    locks.expire(NOW + 60_001)
    assert locks.generation == 3
    assert locks.snapshot() == QueueLockTable({"g": {queues[0]: "c1"}})
    assert locks.lock("h", "c1", queues, NOW + 60_001) == {queues[0]}
    locks.expire(NOW + 60_002)
    assert locks.snapshot() == QueueLockTable({"h": {queues[0]: "c1"}})
    assert locks.generation == 5
    assert locks.lock("g", "c1", queues[2:], NOW + 60_002) == {queues[2]}


def test_only_its_own_leases_are_given_up_by_a_client() -> None:
    """Covers C-355: named twice or not held, each counts once."""
    locks = QueueLocks(held_max=2)
    queues = [MessageQueue("T", "b", number) for number in range(3)]
    locks.lock("g", "c1", queues[:1], NOW)
    locks.lock("g", "c2", queues[1:2], NOW)
    locks.unlock("g", "c1", queues)
    assert locks.snapshot() == QueueLockTable({"g": {queues[1]: "c2"}})
    assert locks.generation == 3
    locks.unlock("g", "c1", queues)
    locks.unlock("nobody", "c1", queues)
    assert locks.generation == 3
    locks.unlock("g", "c2", [queues[1], queues[1]])
    assert locks.snapshot() == QueueLockTable({})
    assert locks.generation == 4
    assert locks.lock("g", "c1", queues, NOW) == set(queues[:2])


def test_a_group_is_locked_while_one_of_its_leases_lasts() -> None:
    locks = QueueLocks()
    queues = [MessageQueue("T", "b", number) for number in range(2)]
    assert not locks.is_locked("g", NOW)
    locks.lock("g", "c1", queues[:1], NOW)
    locks.lock("g", "c1", queues[1:], NOW + 10)
    assert locks.is_locked("g", NOW + 60_010)
    assert not locks.is_locked("h", NOW + 10)
    assert not locks.is_locked("g", NOW + 60_011)
    assert locks.holder("g", queues[0], NOW + 60_010) is None


def test_a_rate_is_of_the_time_since_the_window_began() -> None:
    """Covers the putTps figure of code 28: samples within the window, the first included."""
    counter = Counter()
    for second in range(12):
        counter.sample(second * 1_000)
        counter.total += 2**second
    assert counter.rate(10_000, 11_000) == (2**12 - 2) / 10
    assert counter.rate(9_999, 11_000) == pytest.approx((2**12 - 4) / 9)
    assert counter.rate(0, 11_000) == 0.0, "no time has passed"
    assert counter.rate(0, 11_500) == 0.0, "no sample is so young"
    assert counter.rate(500, 11_500) == 2**11 * 2
    assert counter.rates(11_000) == [(2**12 - 2) / 10, (2**12 - 1) / 11, (2**12 - 1) / 11]
    assert counter.text(11_000) == " ".join(map(str, counter.rates(11_000)))


def test_a_sample_half_a_second_after_the_last_is_one() -> None:
    counter = Counter()
    for now_ms in (0, 499, 500, 999, 1_000):
        counter.total += 1
        counter.sample(now_ms)
    assert list(counter._samples) == [(0, 1), (500, 3), (1_000, 5)]


def test_samples_older_than_the_longest_window_and_one_interval_go() -> None:
    counter = Counter()
    for now_ms in (0, 1, 601_000, 601_001):
        counter.sample(now_ms)
    assert [time for time, _ in counter._samples] == [0, 601_000]
    counter.sample(601_600)
    assert [time for time, _ in counter._samples] == [601_000, 601_600]
    counter.sample(601_000 + 601_001)
    assert [time for time, _ in counter._samples] == [601_600, 1_202_001]
    counter.sample(2_000_000)
    assert [time for time, _ in counter._samples] == [2_000_000]
    assert counter.rates(2_000_000) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("place", "window_ms"), list(enumerate((10_000, 60_000, 600_000))))
def test_rates_are_of_ten_seconds_a_minute_and_ten_minutes(place: int, window_ms: int) -> None:
    """Covers the putTps figure of code 28."""
    counter = Counter()
    counter.sample(0)
    counter.total = 1_000
    counter.sample(500)
    counter.total = 1_001
    assert counter.rates(window_ms)[place] == 1_001 * 1_000 / window_ms
    assert counter.rates(window_ms + 1)[place] == 1_000 / (window_ms + 1 - 500)
