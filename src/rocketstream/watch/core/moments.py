"""The groups of a cluster at one moment, as bytes, so that a window survives a restart.

Pure: states in, bytes out, and back. Fields this release does not know are left out; bytes that
were not written here give None.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from rocketstream.admin.rows import MemberRow, SubscriptionRow
from rocketstream.admin.state import BrokerState, ClusterState, GroupState, QueueKind, QueueState

BYTES_MAX: Final = 64 << 20
"""Most bytes that are unpacked: a damaged file must not fill the memory."""
_QUEUE: Final = tuple(each.name for each in fields(QueueState))
_MEMBER: Final = tuple(each.name for each in fields(MemberRow))
_SUBSCRIPTION: Final = tuple(each.name for each in fields(SubscriptionRow))
_GROUP: Final = tuple(
    each.name
    for each in fields(GroupState)
    if each.name not in ("members", "subscriptions", "queues")
)


@dataclass(frozen=True, slots=True)
class Moment:
    """The groups of a cluster at one moment.

    Attributes:
        taken_ms: when the groups were in these states, ms since 1970.
        groups: the groups by name.
    """

    taken_ms: int
    groups: Mapping[str, GroupState]


def encoded(state: ClusterState) -> bytes:
    """Return the groups of a sweep as bytes."""
    value = {
        "takenMs": state.taken_ms,
        "fields": {"group": _GROUP, "queue": _QUEUE, "member": _MEMBER, "sub": _SUBSCRIPTION},
        "groups": [_group(each) for each in state.groups.values()],
    }
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return zlib.compress(text.encode("ascii"), 1)


def decoded(data: bytes) -> Moment | None:
    """Return what ``encoded`` was given; None for bytes that it did not make."""
    unpack = zlib.decompressobj()
    try:
        value = json.loads(unpack.decompress(data, BYTES_MAX))
        names = value["fields"]
        groups = [_read_group(each, names) for each in value["groups"]]
        return Moment(int(value["takenMs"]), {each.group: each for each in groups})
    except (zlib.error, ValueError, TypeError, KeyError, AttributeError):
        return None


def places(brokers: tuple[BrokerState, ...]) -> frozenset[str]:
    """Return the addresses of a cluster's brokers, which tell it from another cluster."""
    return frozenset(
        f"{broker.broker_name} {address}"
        for broker in brokers
        for address in broker.addresses.values()
    )


def _group(state: GroupState) -> list[Any]:
    own = [_plain(getattr(state, name)) for name in _GROUP]
    members = None if state.members is None else [_row(each, _MEMBER) for each in state.members]
    return [
        own,
        members,
        [_row(each, _SUBSCRIPTION) for each in state.subscriptions],
        [_row(each, _QUEUE) for each in state.queues],
    ]


def _row(value: object, names: tuple[str, ...]) -> list[Any]:
    return [getattr(value, name) for name in names]


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _read_group(value: list[Any], names: Mapping[str, list[str]]) -> GroupState:
    own, members, subscriptions, queues = value
    found = _known(own, names["group"], _GROUP)
    found["errors"] = tuple(found.get("errors", ()))
    return GroupState(
        **found,
        members=None
        if members is None
        else tuple(_read_member(each, names["member"]) for each in members),
        subscriptions=tuple(
            SubscriptionRow(**_known(each, names["sub"], _SUBSCRIPTION)) for each in subscriptions
        ),
        queues=tuple(_read_queue(each, names["queue"]) for each in queues),
    )


def _read_member(value: list[Any], names: list[str]) -> MemberRow:
    found = _known(value, names, _MEMBER)
    return MemberRow(**{**found, "twins": tuple(found.get("twins", ()))})


def _read_queue(value: list[Any], names: list[str]) -> QueueState:
    found = _known(value, names, _QUEUE)
    found["kind"] = QueueKind(found["kind"])
    if found.get("matching_range") is not None:
        low, high = found["matching_range"]
        found["matching_range"] = (low, high)
    return QueueState(**found)


def _known(value: list[Any], names: list[str], known: tuple[str, ...]) -> dict[str, Any]:
    return {name: each for name, each in zip(names, value, strict=True) if name in known}
