"""Addresses and address lists (W 1.7)."""

from __future__ import annotations

import pytest

from rocketstream.errors import ConfigurationError
from rocketstream.protocol.addresses import format_address, parse_address, parse_addresses


def test_host_and_port_come_apart_and_together() -> None:
    assert parse_address(" broker.example:10911 ") == ("broker.example", 10911)
    assert parse_address("[::1]:9876") == ("::1", 9876)
    assert parse_address("::1:9876") == ("::1", 9876)
    assert parse_address("h:65535") == ("h", 65_535)
    assert parse_address("h:0") == ("h", 0)
    assert format_address("::1", 9876) == "[::1]:9876"
    assert format_address("10.0.0.1", 1) == "10.0.0.1:1"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        ":9876",
        "host:",
        "host:x",
        "host:65536",
        "host:-1",
        "a b:1",
        "http://a:1",
        "a;b:1",
        "a,b:1",
        "[]:1",
        "host:²",
    ],
)
def test_what_is_not_an_address_is_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match="not an address") as caught:
        parse_address(text)
    assert repr(text) in str(caught.value)


def test_list_keeps_order_and_drops_repeats_and_blanks() -> None:
    assert parse_addresses("b:2; a:1;;b:2;") == ["b:2", "a:1"]


@pytest.mark.parametrize("text", ["", " ; ", "a:1;b", "a:1,b:2"])
def test_bad_list_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_addresses(text)
