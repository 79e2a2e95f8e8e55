"""ACL signatures (wire-and-storage 6.2)."""

from __future__ import annotations

import pytest

from rocketstream.protocol.signing import sign, signed_content, verify

KEY, SECRET = "RocketMQ", "12345678"
EXT = {
    "n": "broker-a", "a": "pg", "b": "T1", "c": "TBW102", "d": "4", "e": "1", "f": "0",
    "g": "1700000000000", "h": "0", "i": "TAGS\x01TagA", "j": "0", "k": "false", "m": "false",
}  # fmt: skip


def test_signature_of_a_send_is_javas() -> None:
    added = sign(EXT, b"hi", KEY, SECRET)
    assert added == {"AccessKey": KEY, "Signature": "AMyYBSRQkF97cPga3/wURqPLu6s="}
    content = b"RocketMQpgT1TBW10241017000000000000TAGS\x01TagA0falsefalsebroker-ahi"
    assert signed_content({**EXT, **added}, b"hi") == content
    assert verify({**EXT, **added}, b"hi", SECRET)
    assert verify({**EXT, **added}, memoryview(b"hi"), SECRET)


def test_signature_of_a_heartbeat_with_a_token_is_javas() -> None:
    added = sign({}, b"{}", KEY, SECRET, "tok")
    assert added["SecurityToken"] == "tok"
    assert added["Signature"] == "NinC1P9Nj0/DlFPhbixWO7t4sCY="
    assert verify(added, b"{}", SECRET)


@pytest.mark.parametrize("name", [*EXT, "AccessKey", "Signature"])
def test_any_change_breaks_the_signature(name: str) -> None:
    signed = {**EXT, **sign(EXT, b"hi", KEY, SECRET)}
    assert not verify({**signed, name: "other"}, b"hi", SECRET)
    assert not verify(signed, b"ho", SECRET)
    assert not verify(signed, b"hi", SECRET + "9")


def test_request_without_a_signature_is_not_verified() -> None:
    assert not verify(EXT, b"hi", SECRET)
    assert not verify({"Signature": "é\ud800"}, b"", SECRET)


def test_names_sort_by_utf16_units() -> None:
    """covers W 6.2: String.compareTo puts U+1F600 (D83D...) before U+FF5E, upper case first."""
    ext = {"\uff5e": "3", "\U0001f600": "2", "a": "1", "B": "0"}
    assert signed_content(ext, b"") == b"0123"


def test_unique_key_query_may_be_signed_either_way() -> None:
    """covers W 6.2, pitfalls: the client signs it, the 4.9.8 broker leaves it out."""
    ext = {"topic": "T", "_UNIQUE_KEY_QUERY": "true"}
    with_it = sign(ext, b"", KEY, SECRET)
    without = sign(ext, b"", KEY, SECRET, exclude=frozenset({"_UNIQUE_KEY_QUERY"}))
    assert with_it["Signature"] != without["Signature"]
    assert verify({**ext, **with_it}, b"", SECRET)
    assert verify({**ext, **without}, b"", SECRET)
