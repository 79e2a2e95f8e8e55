"""Options of the consuming sink."""

from __future__ import annotations

import pytest

from rocketstream.errors import ConfigurationError
from rocketstream.spark.options import CONSUME_OPTIONS, consume_options

LEAST = {"nameServer": "h:1", "group": "g", "listener": "x"}


def test_defaults_are_the_push_consumers() -> None:
    options = consume_options(LEAST)
    assert (options.batch_size, options.threads_max, options.max_reconsume_times) == (1, 20, 16)
    assert (options.suspend_ms, options.timeout_ms, options.orderly) == (1_000, 900_000, False)


def test_a_call_may_take_as_long_as_the_smaller_bound_says() -> None:
    """In order it is waited for, unless a bound is given: a copy would come behind others."""
    assert consume_options(LEAST).call_timeout_ms == 60_000
    assert consume_options(LEAST | {"consumeTimeout": "0.1"}).call_timeout_ms == 6_000
    in_order = LEAST | {"orderly": "true"}
    assert consume_options(in_order).call_timeout_ms == 900_000
    assert consume_options(in_order | {"microBatchTimeoutMs": "7"}).call_timeout_ms == 7


def test_what_spark_adds_for_the_query_is_let_pass() -> None:
    consume_options(LEAST | {"checkpointLocation": "/c", "queryName": "q", "outputMode": "append"})


def test_a_path_is_refused_as_it_would_be_ignored() -> None:
    with pytest.raises(ConfigurationError, match="a path is given, '/p'"):
        consume_options(LEAST | {"path": "/p"})


def test_names_match_in_any_case_and_reach_every_option() -> None:
    values = {
        "orderly": "true", "consumeMessageBatchMaxSize": "16", "consumeThreadMax": "4",
        "maxReconsumeTimes": "3", "suspendCurrentQueueTimeMillis": "10", "consumeTimeout": "0.5",
        "microBatchTimeoutMs": "2000",
    }  # fmt: skip
    options = consume_options({name.upper(): v for name, v in (LEAST | values).items()})
    assert (options.orderly, options.batch_size, options.threads_max) == (True, 16, 4)
    assert (options.max_reconsume_times, options.suspend_ms, options.timeout_ms) == (3, 10, 30_000)
    assert set(values) | set(LEAST) <= set(CONSUME_OPTIONS)


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("consumeMessageBatchMaxSize", "0", "from 1 to 1024"),
        ("consumeThreadMax", "many", "from 1 to 1000"),
        ("consumeTimeout", "0", "minutes, more than 0"),
        ("microBatchTimeoutMs", "0", "from 1 to"),
        ("consumeTimeout", "nan", "minutes, more than 0"),
        ("suspendCurrentQueueTimeMillis", "60000", "from 10 to 30000"),
        ("maxReconsumeTimes", "-2", "from -1 to"),
        ("orderly", "yes", "true or false"),
        ("group", "a b", "illegal characters"),
        ("batchSize", "1", "unknown option"),
    ],
)
def test_a_value_that_cannot_be_used_is_told(name: str, value: str, accepted: str) -> None:
    with pytest.raises(ConfigurationError, match=accepted):
        consume_options(LEAST | {name: value})


@pytest.mark.parametrize("missing", ["nameServer", "group", "listener"])
def test_what_must_be_given_is_asked_for(missing: str) -> None:
    with pytest.raises(ConfigurationError, match=missing):
        consume_options({name: value for name, value in LEAST.items() if name != missing})


def test_no_secret_and_no_pickle_shows_in_the_text_of_options() -> None:
    text = repr(consume_options(LEAST | {"accessKey": "AK", "secretKey": "SK", "listener": "PPP"}))
    assert "SK" not in text
    assert "PPP" not in text
