"""The consumer groups a broker has settings for.

Pure: settings by group. Upstream: SubscriptionGroupManager (C-349 to C-352).
"""

from __future__ import annotations

from collections.abc import Iterator

from rocketstream.errors import ConfigurationError
from rocketstream.limits import GROUPS_MAX
from rocketstream.protocol import names
from rocketstream.protocol.bodies import (
    DataVersion,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
)
from rocketstream.server.broker.core.room import Room, check_room

SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
SYSTEM_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)


class GroupTable:
    """Group name to settings, with a data version."""

    def __init__(self, *, auto_create: bool, groups_max: int = GROUPS_MAX) -> None:
        self.auto_create = auto_create
        self._groups_max = groups_max
        self._table: dict[str, SubscriptionGroupConfig] = {}
        self._counter = 0
        self._changed_ms = 0

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def load(self, wrapper: SubscriptionGroupWrapper) -> None:
        """Take over the content of a file."""
        self._table = dict(wrapper.subscription_group_table)
        self._counter = wrapper.data_version.counter
        self._changed_ms = wrapper.data_version.timestamp

    def ensure_system_groups(self, now_ms: int) -> bool:
        """Add the groups that must exist; return whether any was missing."""
        missing = [group for group in SYSTEM_GROUPS if group not in self._table]
        for group in missing:
            self.put(SubscriptionGroupConfig(group_name=group), now_ms)
        return bool(missing)

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the settings of a group; None when it has none."""
        return self._table.get(group)

    def find(self, group: str, now_ms: int) -> tuple[SubscriptionGroupConfig | None, bool]:
        """Return a group's settings, made with defaults if allowed, and whether they are new.

        A name that breaks the rules for names is never created (C-351).

        Raises:
            BrokerError: there is no room for another group.
        """
        known = self._table.get(group)
        if known is not None:
            return known, False
        if not (self.auto_create or group.startswith(SYSTEM_GROUP_PREFIX)):
            return None, False
        try:
            names.check_consumer_group(group)
        except ConfigurationError:
            return None, False
        self.check_room(group)
        config = SubscriptionGroupConfig(group_name=group)
        self.put(config, now_ms)
        return config, True

    @property
    def room(self) -> Room:
        """How many groups there are, and may be."""
        return Room("groups", len(self._table), self._groups_max)

    def check_room(self, group: str) -> None:
        """Check that there is room for a group.

        Raises:
            BrokerError: the group is new, and the broker has as many as it keeps.
        """
        check_room("group", group, self._table, self._groups_max)

    def put(self, config: SubscriptionGroupConfig, now_ms: int) -> None:
        """Create or replace a group's settings."""
        self._table[config.group_name] = config
        self._next_version(now_ms)

    def delete(self, group: str, now_ms: int) -> bool:
        """Remove a group's settings; return whether it had any."""
        found = self._table.pop(group, None)
        if found is not None:
            self._next_version(now_ms)
        return found is not None

    def _next_version(self, now_ms: int) -> None:
        self._counter += 1
        self._changed_ms = now_ms

    @property
    def generation(self) -> int:
        """Grows with every change, so that a writer knows what it has saved."""
        return self._counter

    def wrapper(self) -> SubscriptionGroupWrapper:
        """Return the whole table with its version."""
        version = DataVersion(counter=self._counter, timestamp=self._changed_ms)
        return SubscriptionGroupWrapper(dict(self._table), version)
