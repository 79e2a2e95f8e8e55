"""consumerFilter.json: exactly the text Apache's broker wrote (wire-and-storage 3.4, C-393)."""

from __future__ import annotations

import pytest

from rocketstream.protocol.bodies import (
    BloomFilterData,
    ConsumerFilterData,
    ConsumerFilterTable,
    FilterDataMapByTopic,
)

WRITTEN = """{
	"filterDataByTopic":{
		"T1":{
			"groupFilterData":{
				"cg":{
					"bloomFilterData":{
						"bitNum":112,
						"bitPos":[103,80,54]
					},
					"bornTime":1795270930766,
					"clientVersion":1795270930827,
					"consumerGroup":"cg",
					"dead":false,
					"deadTime":0,
					"expression":"index >= 5",
					"expressionType":"SQL92",
					"topic":"T1"
				}
			},
			"topic":"T1"
		}
	}
}"""

DATA = ConsumerFilterData(
    consumer_group="cg",
    topic="T1",
    expression="index >= 5",
    expression_type="SQL92",
    born_time=1795270930766,
    client_version=1795270930827,
    bloom_filter_data=BloomFilterData(112, [103, 80, 54]),
)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (ConsumerFilterTable({"T1": FilterDataMapByTopic("T1", {"cg": DATA})}), WRITTEN),
        (ConsumerFilterTable(), '{\n\t"filterDataByTopic":{}\n}'),
    ],
)
def test_consumer_filters_have_upstreams_text(table: ConsumerFilterTable, text: str) -> None:
    """Covers C-393."""
    assert table.encode(pretty=True).decode() == text
    assert ConsumerFilterTable.decode(text) == table
