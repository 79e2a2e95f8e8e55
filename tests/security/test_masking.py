"""Masking: what a rule names is never shown, and where it cannot be applied nothing is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstream.admin.messages.bodies import BodyFormat, decode_body, undecodable
from rocketstream.admin.messages.masking import Masked, Masking
from rocketstream.admin.messages.shown import Showing
from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt, assemble_message

CARD = "4111222233334444"


def masking(*rules: Mapping[str, Any], key: str = "k") -> Masking:
    return Masking.from_mapping({"rule": list(rules), "key": key})


def masked(
    rules: Masking, body: Any, topic: str = "orders", **properties: str
) -> tuple[Masked, str]:
    """Return what is left of a message, and all of it as text."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    found = rules.apply(topic, properties, decode_body(data))
    return found, f"{found.body.text} {found.body.value} {dict(found.properties)}"


def test_a_value_is_masked_whole_hashed_or_to_its_end() -> None:
    body = {"customer": {"card": CARD, "name": "Eve"}}
    ways: list[tuple[dict[str, Any], str]] = [
        ({"how": "whole"}, "***"),
        ({"how": "last", "keep": 4}, "***4444"),
        ({}, "***"),
    ]
    for how, shown in ways:
        found, text = masked(masking({"json": "customer.card", **how}), body)
        assert found.body.value == {"customer": {"card": shown, "name": "Eve"}}
        assert CARD not in text
    hashing = masking({"json": "customer.card", "how": "hash"})
    one, other = (masked(hashing, body)[0].body.value["customer"]["card"] for _ in range(2))
    assert one == other
    assert one.startswith("#")
    assert (
        masked(masking({"json": "customer.card", "how": "hash"}, key="other"), body)[0].body.value[
            "customer"
        ]["card"]
        != one
    )


@pytest.mark.parametrize(
    "body",
    [
        '{"card": "4111-1111-1111-1111", "card": null}',
        '{"customer": {"card": "4111-1111-1111-1111"}, "customer": {}}',
        '[{"a": {"card": "4111-1111-1111-1111", "card": 1}}]',
    ],
)
def test_a_name_that_stands_twice_hides_nothing_from_a_rule(body: str) -> None:
    """Of two values of one name a reader keeps the last; the text has both."""
    for path in ("card", "customer.card", "**.card"):
        _, text = masked(masking({"json": path}), body.encode())
        assert "4111" not in text


def test_so_much_is_kept_that_as_much_is_hidden() -> None:
    """The last 4 of 5 characters would tell nearly all."""
    rules = masking({"json": "pin", "how": "last", "keep": 4})
    assert masked(rules, {"pin": "12345"})[0].body.value == {"pin": "***"}
    assert masked(rules, {"pin": "12345678"})[0].body.value == {"pin": "***5678"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("card", {"card": CARD}),
        ("$.card", {"card": CARD}),
        ("items[*].card", {"items": [{"card": CARD}, {"card": CARD}]}),
        ("items.card", {"items": [[{"card": CARD}]]}),
        ("**.card", {"a": {"b": [{"card": CARD}]}}),
        ("*.card", {"x": {"card": CARD}, "y": {"card": CARD}}),
        ("card", {"card": {"number": CARD}}),
        ("card", {"card": [CARD, {"x": CARD}]}),
        ("card", {"card": int(CARD)}),
        ("card.number", {"card": CARD}),
        ("card.number", {"card": json.dumps({"number": CARD})}),
        ("**.card", {"payload": json.dumps({"card": CARD})}),
        ("card", [{"card": CARD}]),
    ],
)
def test_a_path_reaches_its_value_however_it_is_wrapped(path: str, body: Any) -> None:
    found, text = masked(masking({"json": path}), {"body": 1} if body is None else body)
    assert CARD not in text
    assert found.body.kind == "json"
    assert found.by == (f"rule 1 ({path.removeprefix('$.').replace('[*]', '')})",)


def test_a_name_twice_in_an_object_does_not_show_its_first_value() -> None:
    body = f'{{"card": "{CARD}", "card": "x"}}'.encode()
    assert CARD not in masked(masking({"json": "card"}), body)[1]


@pytest.mark.parametrize(
    "body",
    [
        b"no json " + CARD.encode(),
        b"\xff\xfe" + CARD.encode(),
        b'{"card": NaN}',
        b"{",
        b'"x"',
        b"7",
    ],
)
def test_a_body_a_path_does_not_fit_is_not_shown_at_all(body: bytes) -> None:
    found, text = masked(masking({"json": "card"}), body)
    assert (found.body.kind, found.body.text, found.body.value) == ("hidden", "", None)
    assert found.body.size == len(body)
    assert "rule 1 (card) cannot be applied: the body is" in str(found.body.problem)
    assert CARD not in text


def test_a_body_that_cannot_be_unpacked_is_not_shown() -> None:
    body = undecodable(CARD.encode(), "damaged")
    for rule in ({"json": "card"}, {"pattern": r"\d+"}):
        assert masking(rule).apply("orders", {}, body).body.kind == "hidden"
    assert masking({"property": "PHONE"}).apply("orders", {}, body).body is body


def test_a_text_too_long_to_be_looked_through_is_not_shown() -> None:
    long = b"x" * 70_000 + CARD.encode()
    assert masked(masking({"pattern": r"\d{16}"}), long)[0].body.kind == "hidden"


def test_properties_and_keys_are_masked_by_name() -> None:
    rules = masking({"property": "PHONE"}, {"property": "KEYS", "how": "last", "keep": 2})
    found, _ = masked(rules, b"plain", PHONE="555-1234", KEYS="customer-4711", TAGS="eu")
    assert dict(found.properties) == {"PHONE": "***", "KEYS": "***11", "TAGS": "eu"}
    assert found.body.text == "plain"


def test_a_pattern_is_masked_in_body_and_properties() -> None:
    rules = masking({"pattern": r"\b\d{16}\b", "how": "last", "keep": 4})
    found, text = masked(rules, f"paid with {CARD}.".encode(), NOTE=f"card {CARD}")
    assert found.body.text == "paid with ***4444."
    assert dict(found.properties) == {"NOTE": "card ***4444"}
    found, text = masked(rules, {"a": [{"b": f"x {CARD}"}], CARD: 1, "n": int(CARD)})
    assert CARD not in text
    assert found.body.kind == "json"


def test_a_pattern_that_spans_values_of_a_json_body_hides_it() -> None:
    rules = masking({"pattern": r'"card": "\d+"'})
    found, text = masked(rules, {"card": CARD})
    assert found.body.kind == "hidden"
    assert CARD not in text
    escaped = b'{"card": "4111\\u0032222\\u0033333' + b'4444"}'
    assert "4111" not in masked(masking({"pattern": r"\d{8,}"}), escaped)[1]


def test_what_is_masked_in_one_place_is_not_shown_in_another() -> None:
    """An exception's text, a key, another field: they hold what the body held."""
    body = {"card": CARD, "note": f"refused {CARD}"}
    found, text = masked(
        masking({"json": "card"}), body, SEND_BACK_CAUSE=f"ValueError: card {CARD}", KEYS=CARD
    )
    assert CARD not in text
    assert found.properties["SEND_BACK_CAUSE"] == "ValueError: card ***"


def test_what_is_masked_in_one_place_is_no_number_in_another() -> None:
    card = int(CARD)
    _, text = masked(masking({"json": "card"}), {"card": card, "copy": card, "all": [card]})
    assert CARD not in text
    found, text = masked(masking({"property": "KEYS"}), {"order": card, "ok": 1}, KEYS=CARD)
    assert CARD not in text
    assert found.body.value == {"order": "***", "ok": 1}


def test_what_is_masked_in_one_place_is_no_hex_in_another() -> None:
    rules = masking({"property": "KEYS"})
    body = decode_body(b"\x00\x01" + CARD.encode(), BodyFormat("hex"))
    found = rules.apply("orders", {"KEYS": CARD}, body)
    assert (found.body.kind, found.by) == ("hidden", ("rule 1 (KEYS)",))
    assert rules.apply("orders", {"KEYS": "another"}, body).body.kind == "hex"


def test_what_a_listener_says_of_a_message_is_masked_as_the_message_is() -> None:
    """An operator who has a member consume a message is told its exception, with what is in it."""
    message, broken = message_of(b'{"card": "%s"}' % CARD.encode()), message_of(CARD.encode() * 2)
    said = f"ValueError('no {CARD}')"
    assert Showing(masking({"json": "card"})).told_of(message, said) == "ValueError('no ***')"
    assert Showing(Masking()).told_of(message, said) == said
    assert Showing(masking({"json": "card"})).told_of(broken, said) == "***"


def test_rules_are_for_the_topics_they_name_and_for_copies_of_their_messages() -> None:
    rules = masking({"topic": "orders*", "json": "card"})
    body = {"card": CARD}
    assert CARD in masked(rules, body, "payments")[1]
    for topic, properties in [
        ("orders", {}),
        ("orders-eu", {}),
        ("tenant%orders", {}),
        ("%RETRY%billing", {"RETRY_TOPIC": "orders"}),
        ("%DLQ%billing", {"DLQ_ORIGIN_TOPIC": "orders"}),
        ("SCHEDULE_TOPIC_XXXX", {"REAL_TOPIC": "orders"}),
        ("SCHEDULE_TOPIC_XXXX", {"REAL_TOPIC": "%RETRY%billing", "RETRY_TOPIC": "orders"}),
        # Whose they are is not told, so they may be anybody's.
        ("%DLQ%billing", {}),
        ("RMQ_SYS_TRANS_HALF_TOPIC", {}),
    ]:
        assert CARD not in masked(rules, body, topic, **properties)[1], topic
    assert CARD in masked(rules, body, "%DLQ%billing", RETRY_TOPIC="payments")[1]


def test_keys_in_trace_records_are_masked_whosever_they_are() -> None:
    rules = masking({"topic": "orders", "property": "KEYS"})
    assert rules.apply_keys("customer-4711") == "***"
    assert rules.apply_keys(None) is None
    assert masked(rules, b"a\x01b", "RMQ_SYS_TRACE_TOPIC")[0].body.kind == "hidden"
    assert masking({"property": "PHONE"}).apply_keys("k") == "k"


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({}, "there is no [[rule]]"),
        ({"rule": {}}, "rule is not known"),
        ({"rules": []}, "rules is not known"),
        ({"key": 1, "rule": [{"json": "a"}]}, "key is 1"),
        ({"rule": ["x"]}, "rule 1 is 'x'"),
        ({"rule": [{"json": "a"}, {"topic": "t"}]}, "rule 2 takes one of json"),
        ({"rule": [{"json": "a", "property": "P"}]}, "rule 1 takes one of json"),
        ({"rule": [{"json": "a", "jsn": "b"}]}, "jsn is not known"),
        ({"rule": [{"json": "a", "how": "blur"}]}, "how is 'blur'"),
        ({"rule": [{"json": "a", "how": "last"}]}, "keep = N is for how"),
        ({"rule": [{"json": "a", "keep": 4}]}, "keep = N is for how"),
        ({"rule": [{"json": "a", "how": "last", "keep": 0}]}, "keep is 0"),
        ({"rule": [{"json": ""}]}, "json is empty"),
        ({"rule": [{"json": "a[0].b"}]}, "it takes names joined by dots"),
        ({"rule": [{"json": "a.**"}]}, "a name must follow **"),
        ({"rule": [{"pattern": "("}]}, "not a regular expression"),
        ({"rule": [{"pattern": 5}]}, "pattern is 5"),
        ({"rule": [{"topic": 5, "json": "a"}]}, "topic is 5"),
    ],
)
def test_a_rule_that_cannot_be_meant_refuses_the_whole_file(
    tree: Mapping[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        Masking.from_mapping(tree)
    assert said in error.value.message


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Masking.from_file(str(tmp_path / "no.toml"))
    bad = tmp_path / "bad.toml"
    bad.write_text("[[rule]\n")
    with pytest.raises(ConfigurationError, match="not TOML"):
        Masking.from_file(str(bad))
    bad.write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match="not TOML"):
        Masking.from_file(str(bad))


def test_the_environment_names_the_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = tmp_path / "mask.toml"
    rules.write_text('[[rule]]\njson = "card"\n')
    monkeypatch.setenv("ROCKETSTREAM_MASK", str(rules))
    assert len(Showing().masking.rules) == 1
    assert not Showing(Masking()).masking
    monkeypatch.setenv("ROCKETSTREAM_MASK", str(tmp_path / "gone.toml"))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Showing()


def test_a_mistake_while_masking_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = masking({"json": "card"})
    monkeypatch.setattr(Masking, "of", lambda *_: (object(),))
    found = rules.apply("orders", {"A": CARD}, decode_body(b'{"card": 1}'))
    assert (found.body.kind, dict(found.properties)) == ("hidden", {"A": "***"})


def message_of(body: bytes, **properties: str) -> MessageExt:
    return assemble_message(
        MessageQueue("orders", "b", 1), 7, body, properties,
        commit_log_offset=42, reconsume_times=2, flag=5, born_timestamp=10, store_timestamp=20,
        born_host=bytes([10, 0, 0, 1, 0, 0, 0, 9]), store_host=bytes([10, 0, 0, 2, 0, 0, 0, 9]),
    )  # fmt: skip


def test_a_message_keeps_everything_but_what_is_masked() -> None:
    message = message_of(b'{"card": "%s"}' % CARD.encode(), UNIQ_KEY="U1", PHONE="555-1234")
    assert Showing(Masking()).masked(message) is message
    kept = Showing(masking({"json": "card"}, {"property": "PHONE"})).masked(message)
    assert bytes(kept.body) == b'{"card": "***"}'
    assert kept.properties == {"UNIQ_KEY": "U1", "PHONE": "***"}
    assert (kept.queue_offset, kept.queue_id, kept.msg_id, kept.offset_msg_id) == (
        7, 1, "U1", message.offset_msg_id,
    )  # fmt: skip
    assert (kept.store_timestamp, kept.born_host, kept.flag, kept.reconsume_times) == (
        20, "10.0.0.1:9", 5, 2,
    )  # fmt: skip
    hidden = Showing(masking({"json": "card"})).masked(message_of(CARD.encode()))
    assert CARD.encode() not in bytes(hidden.body)


secret = st.text("0123456789", min_size=12, max_size=16)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def test_a_message_whose_body_is_cut_does_not_keep_its_parsed_value() -> None:
    """Parsed it takes up to twenty-five times its bytes, and nobody shows it."""
    rows = json.dumps([{"card": "4111", "n": n} for n in range(5_000)]).encode()
    for rules in (Masking(), masking({"json": "card"})):
        found = Showing(rules).shown(message_of(rows))
        assert (found.body.kind, found.body.is_cut, found.body.value) == ("json", True, None)
        assert ("4111" in found.body.text) == (not rules)
    assert found.body.part() == f"the first 65,536 of {found.body.characters:,} characters"
    assert Showing(Masking()).shown(message_of(b'{"a": 1}')).body.value == {"a": 1}


@given(value=secret, around=json_values, data=st.data())
def test_whatever_is_around_it_a_secret_under_its_name_is_not_shown(
    value: str, around: Any, data: st.DataObject
) -> None:
    """Properties that hold it too, strings that embed it, other fields of the same value."""
    body: Any = {"card": value, "x": around}
    for _ in range(data.draw(st.integers(0, 3))):
        body = data.draw(
            st.sampled_from([{"in": body}, [body, around], {"text": json.dumps(body)}])
        )
    rules = masking({"json": "**.card"})
    found, text = masked(rules, body, KEYS=f"a {value}")
    assert value not in text
    assert found.by
