"""Settings of RocketMQ's own clients as options: ``rocketmq.`` followed by their name there.

Pure: one table.

Law: a setting that a read cannot use is refused with the reason, not ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final

from rocketstream.errors import ConfigurationError

PREFIX: Final = "rocketmq."

CLIENT_SETTINGS: Final = {
    "namesrv.addr": "nameServer",
    "namesrvAddr": "nameServer",
    "accessKey": "accessKey",
    "secretKey": "secretKey",
    "securityToken": "securityToken",
    "useTLS": "useTls",
    "tls.enable": "useTls",
    "mqClientApiTimeout": "requestTimeoutMs",
    "consumerPullTimeoutMillis": "requestTimeoutMs",
    "connectTimeoutMillis": "connectTimeoutMs",
    "consumerGroup": "group",
    "pullBatchSize": "pullBatchSize",
}
"""Names of Java's system properties and consumer settings, with the option each stands for."""

_WITHOUT_USE: Final = {
    "instanceName": "a read joins no group, so it has no client id",
    "clientIP": "a read joins no group, so it has no client id",
    "unitName": "a read joins no group, so it has no client id",
    "vipChannelEnabled": "pulls never go to the broker's fast port",
    "messageModel": "every query reads every message; several share nothing",
    "consumeFromWhere": "say where to begin by 'startingOffsets' or 'startingTimestamp'",
    "consumeThreadMin": "Spark's tasks do the work: see 'minPartitions'",
    "consumeThreadMax": "Spark's tasks do the work: see 'minPartitions'",
    "consumeMessageBatchMaxSize": "see 'maxOffsetsPerTrigger'",
    "pullInterval": "see 'maxOffsetsPerTrigger'",
    "heartbeatBrokerInterval": "a read sends no heartbeats",
    "pollNameServerInterval": "see 'queueRefreshMs'",
}


def spelled_as_options(given: Mapping[str, str], accepted: Sequence[str]) -> dict[str, str]:
    """Return options in which settings of the clients have the names of their options.

    Args:
        given: as a user wrote them; names match in any case.
        accepted: the existing options.

    Raises:
        ConfigurationError: a setting is unknown or has no use here, or is given twice.
    """
    ours = {name.lower(): option for name, option in CLIENT_SETTINGS.items() if option in accepted}
    useless = {name.lower(): why for name, why in _WITHOUT_USE.items()}
    values: dict[str, str] = {}
    origin: dict[str, str] = {}
    for key, value in given.items():
        option = key
        if key.lower().startswith(PREFIX):
            name = key.lower().removeprefix(PREFIX)
            if name not in ours:
                raise _refusal(key, name, list(ours), useless.get(name))
            option = ours[name]
        if option.lower() in origin:
            raise ConfigurationError(
                f"options {origin[option.lower()]!r} and {key!r} are the same; give one of them",
                option=key,
            )
        origin[option.lower()] = key
        values[option] = value
    return values


def _refusal(key: str, name: str, ours: list[str], why: str | None) -> ConfigurationError:
    spelled = {setting.lower(): PREFIX + setting for setting in CLIENT_SETTINGS}
    if why is not None:
        text = f"option {key!r} has no effect here: {why}. Leave it out"
    else:
        close = get_close_matches(name, ours, 1)
        hint = f"; did you mean {spelled[close[0]]!r}?" if close else "."
        text = f"unknown option {key!r}{hint} Accepted: {', '.join(spelled[each] for each in ours)}"
    return ConfigurationError(text, option=key)
