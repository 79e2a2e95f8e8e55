"""Namespaces: the prefix ``ns%`` of topics and groups, put on and taken off (C-146, C-147).

Pure: text in, text out; upstream's NamespaceUtil and the namespace part of NameServerAddressUtils.
"""

from __future__ import annotations

import re
from typing import Final

from rocketstream.protocol.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_GROUP_PREFIX,
    is_system_topic,
)

NAMESPACE_SEPARATOR: Final = "%"

_INSTANCE_ENDPOINT = re.compile(r"(?:\w+://|)MQ_INST_\w+_\w+\..*", re.ASCII)
_HTTP_SCHEME: Final = "http://"


def wrap_namespace(namespace: str | None, resource: str) -> str:
    """Return a topic or group with its namespace: ``ns%r``, ``%RETRY%ns%r``, ``%DLQ%ns%r``.

    System topics and groups, and names that already have the namespace, stay unchanged (C-146).
    """
    if not namespace or not resource or _is_system(resource):
        return resource
    prefix, rest = _split(resource)
    marked = namespace + NAMESPACE_SEPARATOR
    return resource if rest.startswith(marked) else prefix + marked + rest


def without_namespace(resource: str, namespace: str | None) -> str:
    """Return a topic or group without ``namespace``, if it has that namespace (C-147)."""
    if not namespace or not resource:
        return resource
    prefix, rest = _split(resource)
    marked = namespace + NAMESPACE_SEPARATOR
    return prefix + rest[len(marked) :] if rest.startswith(marked) else resource


def without_any_namespace(resource: str) -> str:
    """Return a topic or group without the part before its first ``%`` (C-147)."""
    if not resource or _is_system(resource):
        return resource
    prefix, rest = _split(resource)
    namespace, separator, name = rest.partition(NAMESPACE_SEPARATOR)
    return prefix + name if separator and namespace else resource


def namespace_of_endpoint(address: str | None) -> str | None:
    """Return the instance id a name server address begins with, which is its namespace (C-5).

    >>> namespace_of_endpoint("http://MQ_INST_1_a.mq.example:80")
    'MQ_INST_1_a'
    """
    text = (address or "").strip()
    if not _INSTANCE_ENDPOINT.fullmatch(text):
        return None
    return text[: text.index(".")].rpartition("/")[2]


def without_scheme(address: str) -> str:
    """Return a name server address without ``http://`` (C-1)."""
    text = address.strip()
    return text.rpartition("/")[2] if text.startswith(_HTTP_SCHEME) else text


def _split(resource: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if resource.startswith(prefix):
            return prefix, resource[len(prefix) :]
    return "", resource


def _is_system(resource: str) -> bool:
    return is_system_topic(resource) or resource.startswith(SYSTEM_GROUP_PREFIX)
