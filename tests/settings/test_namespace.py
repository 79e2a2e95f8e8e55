"""Namespaces in topics and groups (C-146, C-147)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstream.protocol.namespace import (
    namespace_of_endpoint,
    without_any_namespace,
    without_namespace,
    wrap_namespace,
)

NAMES = st.text(alphabet="abcXYZ09_-", min_size=1, max_size=12)
PREFIXES = st.sampled_from(["", "%RETRY%", "%DLQ%"])


@pytest.mark.parametrize(
    ("resource", "wrapped"),
    [
        ("T", "ns%T"),
        ("%RETRY%G", "%RETRY%ns%G"),
        ("%DLQ%G", "%DLQ%ns%G"),
        ("ns%T", "ns%T"),
        ("%RETRY%ns%G", "%RETRY%ns%G"),
        ("other%T", "ns%other%T"),
        ("nsT", "ns%nsT"),
        ("", ""),
        ("TBW102", "TBW102"),
        ("rmq_sys_anything", "rmq_sys_anything"),
        ("RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRACE_TOPIC"),
        ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
        ("TOOLS_CONSUMER", "ns%TOOLS_CONSUMER"),
    ],
)
def test_wrapping(resource: str, wrapped: str) -> None:
    """Covers C-97, C-146: system names and what has the namespace already stay as they are."""
    assert wrap_namespace("ns", resource) == wrapped
    assert wrap_namespace(None, resource) == wrap_namespace("", resource) == resource


@pytest.mark.parametrize(
    ("resource", "namespace", "unwrapped"),
    [
        ("ns%T", "ns", "T"),
        ("ns%T", None, "ns%T"),
        ("%RETRY%ns%G", "ns", "%RETRY%G"),
        ("%DLQ%ns%G", "ns", "%DLQ%G"),
        ("%RETRY%two%G", "three", "%RETRY%two%G"),
        ("T", "ns", "T"),
        ("", "ns", ""),
    ],
)
def test_unwrapping_takes_only_the_given_namespace(
    resource: str, namespace: str | None, unwrapped: str
) -> None:
    """Covers C-147, the form with two arguments."""
    assert without_namespace(resource, namespace) == unwrapped


@pytest.mark.parametrize(
    ("resource", "unwrapped"),
    [
        ("a%T", "T"),
        ("%RETRY%a%G", "%RETRY%G"),
        ("T", "T"),
        ("%RETRY%G", "%RETRY%G"),
        ("%T", "%T"),
        ("a%b%T", "b%T"),
        ("rmq_sys_a%T", "rmq_sys_a%T"),
        ("", ""),
    ],
)
def test_unwrapping_whatever_stands_there(resource: str, unwrapped: str) -> None:
    """Covers C-147, the form with one argument."""
    assert without_any_namespace(resource) == unwrapped


@given(PREFIXES, NAMES, NAMES)
def test_unwrapping_undoes_wrapping(prefix: str, namespace: str, name: str) -> None:
    """Covers C-146, C-147: for every name that is not the system's, once and only once."""
    wrapped = wrap_namespace(namespace, prefix + name)
    assert wrap_namespace(namespace, wrapped) == wrapped
    assert without_namespace(wrapped, namespace) == prefix + name
    assert without_any_namespace(wrapped) == prefix + name


def test_an_endpoint_without_instance_id_has_no_namespace() -> None:
    """Covers C-5."""
    assert namespace_of_endpoint(None) is None
    assert namespace_of_endpoint("ftp://MQ_INST_a_b.x") == "MQ_INST_a_b"
    assert namespace_of_endpoint("http://x/MQ_INST_a_b.x") is None
