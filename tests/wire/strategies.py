"""Hypothesis strategies shared by the protocol tests."""

from __future__ import annotations

from hypothesis import strategies as st

from rocketstream.model import MessageQueue

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=30)
NAME = st.text(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-%|", min_size=1, max_size=40
)
PROPERTY_TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=20
)
PROPERTIES = st.dictionaries(PROPERTY_TEXT, PROPERTY_TEXT, max_size=8)
EXT = st.dictionaries(TEXT, TEXT, max_size=10)
BINARY_EXT = st.dictionaries(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=30),
    max_size=10,
)
QUEUES = st.builds(MessageQueue, NAME, NAME, st.integers(0, 1000))

HOSTS = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)
PORTS = st.integers(0, 65535)

_SCALARS = st.one_of(
    st.none(), st.booleans(), INT64, TEXT, st.floats(allow_nan=False, allow_infinity=False)
)
JSON = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(TEXT, inner, max_size=4),
        st.dictionaries(INT64, inner, max_size=4),
        st.dictionaries(QUEUES, inner, max_size=3),
    ),
    max_leaves=15,
)
"""Values of the fastjson dialect: maps keyed by text, by number or by queue."""

STANDARD_JSON = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=4)),
    max_leaves=15,
)
"""Values of standard JSON."""
