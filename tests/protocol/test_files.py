"""Config files: exactly the text upstream writes (wire-and-storage 3.4, C-305, C-327)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import (
    ConsumerOffsetTable,
    DataVersion,
    DelayOffsetTable,
    KVConfigSerializeWrapper,
    OffsetSerializeWrapper,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from rocketstream.protocol.bodies.base import Body
from tests.protocol.strategies import INT64, NAME, QUEUES

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

LOCAL_OFFSETS = """{
	"offsetTable":{{
			"brokerName":"broker-a",
			"queueId":1,
			"topic":"TopicA"
		}:7,{
			"brokerName":"broker-a",
			"queueId":0,
			"topic":"TopicA"
		}:12
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
