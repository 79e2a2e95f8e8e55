"""Config files: exactly the text upstream writes (wire-and-storage 3.4, C-305, C-327)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstream.errors import RemoteProtocolError
from rocketstream.limits import JSON_LENIENT_CHARS_MAX, JSON_VALUES_MAX
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import (
    BloomFilterData,
    ConsumerFilterData,
    ConsumerFilterTable,
    ConsumerOffsetTable,
    DataVersion,
    DelayOffsetTable,
    FilterDataMapByTopic,
    KVConfigSerializeWrapper,
    OffsetSerializeWrapper,
    QueueLockTable,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from rocketstream.protocol.bodies.base import Body
from rocketstream.protocol.bodies.files import CHECKSUM_NAME, is_sealed, sealed, unsealed
from tests.kits.vectors import LOCAL_OFFSETS
from tests.wire.strategies import INT64, NAME, QUEUES

CONSUMER_OFFSET = """{
	"offsetTable":{
		"GoldT@cg":{0:4,1:2,2:1,3:2
		},
		"%RETRY%cg@cg":{0:1
		}
	}
}"""

DELAY_OFFSET = """{
	"offsetTable":{1:1,3:1
	}
}"""

TOPICS = """{
	"dataVersion":{
		"counter":5,
		"timestamp":1795203656053
	},
	"topicConfigTable":{
		"T1":{
			"order":false,
			"perm":6,
			"readQueueNums":8,
			"topicFilterType":"SINGLE_TAG",
			"topicName":"T1",
			"topicSysFlag":0,
			"writeQueueNums":8
		}
	}
}"""


def test_consumer_offset_file() -> None:
    """covers C-327."""
    table = ConsumerOffsetTable({"GoldT@cg": {0: 4, 1: 2, 2: 1, 3: 2}, "%RETRY%cg@cg": {0: 1}})
    assert table.encode(pretty=True).decode() == CONSUMER_OFFSET
    assert ConsumerOffsetTable.decode(CONSUMER_OFFSET) == table


def test_quoted_keys_and_data_version_of_5x_are_read_too() -> None:
    """covers C-327: the original also accepts quoted keys; W 3.4: 5.x adds dataVersion."""
    text = '{"dataVersion":{"counter":1},"offsetTable":{"T@G":{"0":1,"1":2}}}'
    assert ConsumerOffsetTable.decode(text).offset_table == {"T@G": {0: 1, 1: 2}}


def test_delay_offset_file() -> None:
    table = DelayOffsetTable({1: 1, 3: 1})
    assert table.encode(pretty=True).decode() == DELAY_OFFSET
    assert DelayOffsetTable.decode(DELAY_OFFSET) == table


def test_topics_file() -> None:
    table = TopicConfigSerializeWrapper(
        {"T1": TopicConfig("T1", 8, 8)}, DataVersion(5, 1795203656053)
    )
    assert table.encode(pretty=True).decode() == TOPICS
    assert TopicConfigSerializeWrapper.decode(TOPICS) == table
    table.topic_config_table["%RETRY%\u7ec4"] = TopicConfig(
        "%RETRY%\u7ec4", 1, 2, 7, "MULTI_TAG", 3, True
    )
    for name, attributes in (("T2", {}), ("T3", {"queue.type": "BatchCQ", "a": '"'})):
        table.topic_config_table[name] = TopicConfig(name, attributes=attributes)
    assert table.encode(pretty=True) == Body.encode(table, pretty=True)
    assert TopicConfigSerializeWrapper.decode(table.encode(pretty=True)) == table


def test_local_offsets_file() -> None:
    """covers C-305."""
    table = OffsetSerializeWrapper(
        {MessageQueue("TopicA", "broker-a", 1): 7, MessageQueue("TopicA", "broker-a", 0): 12}
    )
    assert table.encode(pretty=True).decode() == LOCAL_OFFSETS
    assert OffsetSerializeWrapper.decode(LOCAL_OFFSETS) == table


def test_empty_tables_stay_on_one_line() -> None:
    assert ConsumerOffsetTable().encode(pretty=True) == b'{\n\t"offsetTable":{}\n}'


def test_kv_config_file() -> None:
    """covers W 2.7, kvConfig.json."""
    table = KVConfigSerializeWrapper({"ORDER_TOPIC_CONFIG": {"TopicX": "broker-a:4;broker-b:4"}})
    text = '{"configTable":{"ORDER_TOPIC_CONFIG":{"TopicX":"broker-a:4;broker-b:4"}}}'
    assert table.encode().decode() == text
    assert KVConfigSerializeWrapper.decode(text) == table


def test_group_file_keeps_defaults_of_missing_names() -> None:
    """covers W 3.2, SubscriptionGroupConfig."""
    wrapper = SubscriptionGroupWrapper.decode(
        '{"subscriptionGroupTable":{"cg":{"groupName":"cg","groupSysFlag":0,"attributes":{}}}}'
    )
    assert wrapper.subscription_group_table == {"cg": SubscriptionGroupConfig("cg")}


@given(st.dictionaries(NAME, st.dictionaries(st.integers(0, 1000), INT64, max_size=4), max_size=4))
def test_offset_files_round_trip(offsets: dict[str, dict[int, int]]) -> None:
    table = ConsumerOffsetTable(offsets)
    assert table.encode(pretty=True) == Body.encode(table, pretty=True)
    assert ConsumerOffsetTable.decode(table.encode(pretty=True)) == table


@given(st.dictionaries(QUEUES, INT64, max_size=6))
def test_local_offset_files_round_trip(offsets: dict[MessageQueue, int]) -> None:
    table = OffsetSerializeWrapper(offsets)
    assert OffsetSerializeWrapper.decode(table.encode(pretty=True)) == table


# --- files are read strictly, and each has a checksum ---------------------------------------------

QUEUE = MessageQueue("T", "broker-a", 1)
CONDITION = ConsumerFilterData(
    "cg", "T", "n > 1", "SQL92", 5, bloom_filter_data=BloomFilterData(112, [3, 9])
)
TABLES: dict[str, Body] = {
    "consumerOffset.json": ConsumerOffsetTable({"T@G": {0: 160, 1: 0}}),
    "delayOffset.json": DelayOffsetTable({1: 10, 4: 0}),
    "topics.json": TopicConfigSerializeWrapper(
        {"T": TopicConfig("T", 4, 8), "U": TopicConfig("U", attributes={"a": "b"})},
        DataVersion(5, 1795203656053),
    ),
    "subscriptionGroup.json": SubscriptionGroupWrapper({"cg": SubscriptionGroupConfig("cg")}),
    "consumerFilter.json": ConsumerFilterTable({"T": FilterDataMapByTopic("T", {"cg": CONDITION})}),
    "queueLocks.json": QueueLockTable({"cg": {QUEUE: "c1"}}),
    "kvConfig.json": KVConfigSerializeWrapper({"ORDER_TOPIC_CONFIG": {"T": "broker-a:4"}}),
    "offsets.json": OffsetSerializeWrapper({QUEUE: 20}),
}


def read_file(name: str, data: bytes) -> Body:
    return type(TABLES[name]).decode_file(unsealed(name, data))


def damaged(data: bytes) -> list[bytes]:
    """Every flipped bit, every cut, every zeroed run of eight."""
    found = [data[:place] for place in range(len(data))]
    for place, byte in enumerate(data):
        rest = data[place + 1 :]
        found += [data[:place] + bytes([byte ^ (1 << bit)]) + rest for bit in range(8)]
        found.append(data[:place] + bytes(8) + data[place + 8 :])
    return found


@pytest.mark.parametrize("name", TABLES)
def test_no_damage_makes_another_table(name: str) -> None:
    """Each flipped bit, cut or zeroed part of each file is seen, in its checksum too."""
    table = TABLES[name]
    data = sealed(name, table.encode(pretty=True))
    assert is_sealed(data)
    assert read_file(name, data) == table
    for wrong in damaged(data):
        with pytest.raises((RemoteProtocolError, UnicodeDecodeError)):
            read_file(name, wrong)


@pytest.mark.parametrize("name", TABLES)
def test_checksum_leaves_the_text_as_upstream_reads_it(name: str) -> None:
    """The name comes first and stands by itself; the rest is byte for byte the text."""
    text = TABLES[name].encode(pretty=True)
    head, line, rest = sealed(name, text).partition(b"\n\t")
    first, comma, others = rest.partition(b",")
    assert (head, line, comma, b"{" + others) == (b"{", b"\n\t", b",", text)
    assert first.startswith(b'"%b":"' % CHECKSUM_NAME.encode())
    assert type(TABLES[name]).decode(sealed(name, text)) == TABLES[name], "and we ignore it too"


@pytest.mark.parametrize("text", [b"{}", b"{\n}"])
def test_table_without_names_has_a_checksum_too(text: bytes) -> None:
    data = sealed("brokerSettings.json", text)
    assert list(json.loads(data)) == [CHECKSUM_NAME]
    assert unsealed("brokerSettings.json", data) == text


@pytest.mark.parametrize("name", TABLES)
def test_text_without_its_main_name_is_broken(name: str) -> None:
    """One bit of the name of a table is not an empty table: nothing else would tell."""
    text = TABLES[name].encode(pretty=True)
    main = {"topics.json": b"topicConfigTable"}.get(name) or text.split(b'"')[1]
    if name == "subscriptionGroup.json":
        main = b"subscriptionGroupTable"
    wrong = text.replace(main, main[:-1] + b"_", 1)
    assert wrong != text
    with pytest.raises(RemoteProtocolError, match=f"text has no {main.decode()}"):
        type(TABLES[name]).decode_file(wrong)
    with pytest.raises(RemoteProtocolError):
        type(TABLES[name]).decode_file(b"{}")


@pytest.mark.parametrize(
    ("name", "given", "written"),
    [
        ("consumerOffset.json", "0:160", "0:-5"),
        ("consumerOffset.json", "0:160", "0:1.5"),
        ("consumerOffset.json", "0:160", '0:"160"'),
        ("consumerOffset.json", "0:160", "0:null"),
        ("consumerOffset.json", "0:160", "-1:160"),
        ("consumerOffset.json", "T@G", "TAG"),
        ("delayOffset.json", "4:0", "0:0"),
        ("delayOffset.json", "1:10", "1:-10"),
        ("topics.json", '"readQueueNums":4', '"readQueueNums":0'),
        ("topics.json", '"writeQueueNums":8', '"writeQueueNums":65537'),
        ("topics.json", '"perm":6', '"perm":14'),
        ("topics.json", '"perm":6', '"perl":6'),
        ("topics.json", '"topicName":"T"', '"topicName":"V"'),
        ("topics.json", "SINGLE_TAG", "SINGLE_TAF"),
        ("topics.json", '"order":false', '"order":0'),
        ("topics.json", '"a":"b"', '"a":7'),
        ("subscriptionGroup.json", '"groupName":"cg"', '"groupName":"ch"'),
        ("subscriptionGroup.json", "retryMaxTimes", "retryMaxTimet"),
        ("consumerFilter.json", '"consumerGroup":"cg"', '"consumerGroup":"ch"'),
        ("consumerFilter.json", "[3,9]", "3"),
        ("queueLocks.json", '"queueId":1', '"queueId":"1"'),
        ("kvConfig.json", '"broker-a:4"', "4"),
        ("kvConfig.json", '{"T"', '["T"'),
        ("offsets.json", ":20", ":-20"),
        ("offsets.json", ":20", ":20.5"),
        ("offsets.json", '"queueId":1', '"queueId":-1'),
        ("offsets.json", '"brokerName"', '"brokerNamf"'),
    ],
)
def test_value_that_cannot_be_makes_a_file_broken(name: str, given: str, written: str) -> None:
    """Of a text without a checksum too, of Apache's broker: what can be known of it is."""
    text = TABLES[name].encode().decode()
    assert given in text
    with pytest.raises(RemoteProtocolError):
        type(TABLES[name]).decode_file(text.replace(given, written, 1))


def test_a_table_as_large_as_its_owner_lets_it_grow_is_read_again() -> None:
    """What a broker has written it must read at its next start, whatever a peer may send."""
    offsets = {f"T@group-{number}": dict.fromkeys(range(1000), 10**9) for number in range(200)}
    text = ConsumerOffsetTable(offsets).encode(pretty=True)
    assert len(text) > JSON_LENIENT_CHARS_MAX
    assert ConsumerOffsetTable.decode_file(text).offset_table == offsets
    commas = KVConfigSerializeWrapper({"namespace": {"key": "," * (JSON_VALUES_MAX + 1)}})
    assert KVConfigSerializeWrapper.decode_file(commas.encode()) == commas


def test_texts_that_look_like_one_queue_are_two_names() -> None:
    """Names come from clients: a file with two such ones could not be read any more."""
    here, there = (
        '{"topic":"a","brokerName":"b","queueId":0}',
        '{"brokerName":"b","topic":"a","queueId":0}',
    )
    settings = KVConfigSerializeWrapper({here: {there: "v"}, there: {here: "v", there: "w"}})
    conditions = ConsumerFilterTable(
        {
            topic: FilterDataMapByTopic(topic, {"cg": replace(CONDITION, topic=topic)})
            for topic in (here, there)
        }
    )
    for table in (settings, conditions):
        assert type(table).decode_file(table.encode(pretty=True)) == table
    with pytest.raises(RemoteProtocolError, match="a name twice"):
        OffsetSerializeWrapper.decode_file(json.dumps({"offsetTable": {here: 1, there: 1}}))


def test_names_of_later_versions_are_ignored_in_files_too() -> None:
    """Covers W 3.4: 5.x writes more into the files, and quotes the numbers of queues."""
    text = '{"dataVersion":{"counter":1,"stateVersion":0},"offsetTable":{"T@G":{"0":1,"1":2}}}'
    assert ConsumerOffsetTable.decode_file(text).offset_table == {"T@G": {0: 1, 1: 2}}
    group = SubscriptionGroupConfig("cg").to_json() | {"groupSysFlag": 0, "attributes": {}}
    table = {"subscriptionGroupTable": {"cg": group}, "forbiddenTable": {}}
    read = SubscriptionGroupWrapper.decode_file(json.dumps(table))
    assert read.subscription_group_table == {"cg": SubscriptionGroupConfig("cg")}
