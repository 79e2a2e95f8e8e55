"""The settings of a push consumer that have a meaning on Spark, which reads and paces itself.

Pure: the facade and the writer both report these settings to the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rocketstream.client.consumer.settings import PushConsumerSettings
from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageModel
from rocketstream.settings import keyword_fields, unknown_setting
from rocketstream.spark.options import consume_options

SETTINGS: Final = frozenset(
    {
        "consume_from_where", "consume_timestamp", "consume_thread_max",
        "consume_message_batch_max_size", "max_reconsume_times", "suspend_current_queue_time_ms",
        "consume_timeout_minutes", "await_termination_ms_when_shutdown", "pull_batch_size",
        "check_crc", "send_back_cause",
    }
)  # fmt: skip
"""The settings of ``PushConsumerSettings`` that have a meaning on Spark."""

_KEYWORDS: Final = (
    "listener", "subscription", "namesrv_addr", "trigger", "max_offsets_per_trigger", "options",
    "micro_batch_timeout_ms", "checkpoint_location", "clock",
)  # fmt: skip
"""The other keywords of ``SparkPushConsumer``, which a misspelt name may have meant."""


def checked_settings(group: str, given: Mapping[str, Any]) -> PushConsumerSettings:
    """Return the checked settings of a consumer on Spark.

    Raises:
        ConfigurationError: a setting is unknown, without meaning on Spark, or out of its range.
    """
    every = {field.name for field in keyword_fields(PushConsumerSettings)}
    for name, value in given.items():
        if name == "message_model" and value is MessageModel.CLUSTERING:
            continue
        if name in SETTINGS:
            continue
        if name in every:
            raise ConfigurationError(
                f"{name!r} has no meaning on Spark, which paces and divides the reading itself "
                f"(option max_offsets_per_trigger); settings are {', '.join(sorted(SETTINGS))}",
                setting=name,
            )
        raise unknown_setting(
            "SparkPushConsumer", name, [PushConsumerSettings], _KEYWORDS, SETTINGS
        )
    made = PushConsumerSettings(group, **given)
    made.check()
    return made


def told_settings(options: Mapping[str, str]) -> PushConsumerSettings:
    """Return the options of the sink under a push consumer's names, for running info.

    Raises:
        ConfigurationError: they are not options of the sink.
    """
    told = consume_options(options)
    given: dict[str, Any] = {
        "consume_thread_max": told.threads_max,
        "consume_message_batch_max_size": told.batch_size,
        "max_reconsume_times": told.max_reconsume_times,
        "suspend_current_queue_time_ms": told.suspend_ms,
        "consume_timeout_minutes": told.timeout_ms / 60_000,
        "send_back_cause": told.send_back_cause,
    }
    return PushConsumerSettings(told.group, **given)
