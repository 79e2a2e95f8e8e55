"""Headers of the name server: routes, broker registration, key-value configuration.

Pure: fields and their wire names.
"""

from __future__ import annotations

from rocketstream.protocol.headers.base import Header, Long, header


@header()
class GetRouteInfoRequestHeader(Header):
    """Code 105."""

    topic: str
    accept_standard_json_only: bool | None = None


@header()
class RegisterBrokerRequestHeader(Header):
    """Code 103."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Long
    compressed: bool = False
    body_crc32: int | None = 0


@header()
class RegisterBrokerResponseHeader(Header):
    """Answer to code 103; both fields are set only for a slave whose master is alive."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@header()
class UnRegisterBrokerRequestHeader(Header):
    """Code 104."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@header()
class QueryDataVersionRequestHeader(Header):
    """Code 322."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@header()
class QueryDataVersionResponseHeader(Header):
    """Answer to code 322."""

    changed: bool


@header()
class PutKVConfigRequestHeader(Header):
    """Code 100."""

    namespace: str
    key: str
    value: str


@header()
class GetKVConfigRequestHeader(Header):
    """Code 101."""

    namespace: str
    key: str


@header()
class GetKVConfigResponseHeader(Header):
    """Answer to code 101."""

    value: str | None = None


@header()
class DeleteKVConfigRequestHeader(Header):
    """Code 102."""

    namespace: str
    key: str


@header()
class GetKVListByNamespaceRequestHeader(Header):
    """Code 219."""

    namespace: str


@header()
class GetTopicsByClusterRequestHeader(Header):
    """Code 224."""

    cluster: str


@header()
class DeleteTopicFromNamesrvRequestHeader(Header):
    """Code 216."""

    topic: str
    cluster_name: str | None = None
