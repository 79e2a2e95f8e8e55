"""Access control without a broker: accounts, addresses, which right each request needs, edits."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    SubscriptionData,
    UnlockBatchRequestBody,
)
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.signing import sign
from rocketstream.server.broker.core.acl.accounts import (
    PUB,
    SUB,
    AclRules,
    join,
    parse_document,
)
from rocketstream.server.broker.core.acl.addresses import parse_rule
from rocketstream.server.broker.core.acl.edits import (
    AccountUpdate,
    delete_account,
    set_white_addresses,
    update_account,
)
from rocketstream.server.broker.core.acl.rights import RULES, rights_of
from rocketstream.server.broker.core.acl.verdict import (
    account_of,
    lacking_rights,
    lacking_to_stored,
    refusal_of,
)

SECRET = "secret-of-sales"
SALES: dict[str, Any] = {
    "accessKey": "salesdesk",
    "secretKey": SECRET,
    "defaultTopicPerm": "DENY",
    "defaultGroupPerm": "DENY",
    "topicPerms": ["orders=PUB|SUB", "prices=SUB", "audit=PUB", "closed=DENY"],
    "groupPerms": ["shop=SUB", "shut=DENY"],
}
ADMIN_CODES = {code for code, rule in RULES.items() if rule is None}
OPERATOR = {"accessKey": "operator", "secretKey": "secret-of-operator", "admin": True}


def rules(*accounts: dict[str, Any], white: tuple[str, ...] = ()) -> AclRules:
    document = {"accounts": list(accounts), "globalWhiteRemoteAddresses": list(white)}
    return join([("plain_acl.yml", parse_document(document))])


def request(
    code: int, ext: dict[str, str] | None = None, body: bytes = b"", *, key: str = "salesdesk",
    secret: str = SECRET,
) -> RemotingCommand:  # fmt: skip
    command = RemotingCommand(code, ext_fields=dict(ext or {}), body=body)
    assert command.ext_fields is not None
    command.ext_fields |= sign(command.ext_fields, body, key, secret)
    return command


def heartbeat(group: str, *topics: str) -> bytes:
    subscriptions = [SubscriptionData(topic=topic, sub_string="*") for topic in topics]
    consumer = ConsumerData(group_name=group, subscription_data_set=subscriptions)
    return HeartbeatData(client_id="c", consumer_data_set=[consumer]).encode()


ORDERS_OF_SHOP = {"orders": SUB, "%RETRY%shop": SUB}
QUEUES = {MessageQueue("orders", "broker-a", 0)}
LOCK = LockBatchRequestBody(consumer_group="shop", client_id="c", mq_set=QUEUES).encode()
UNLOCK = UnlockBatchRequestBody(consumer_group="shop", client_id="c", mq_set=QUEUES).encode()
NEEDED: list[tuple[int, dict[str, str], bytes, dict[str, int]]] = [
    (10, {"topic": "orders", "producerGroup": "p"}, b"", {"orders": PUB}),
    (10, {"topic": "%RETRY%shop", "producerGroup": "p"}, b"", {"%RETRY%shop": SUB}),
    (310, {"b": "orders", "a": "p"}, b"", {"orders": PUB}),
    (310, {"b": "%RETRY%shop", "a": "CLIENT_INNER_PRODUCER"}, b"", {"%RETRY%shop": SUB}),
    (320, {"b": "orders", "a": "p"}, b"", {"orders": PUB}),
    (324, {"topic": "DefaultCluster_REPLY_TOPIC"}, b"", {}),
    (324, {"topic": "orders"}, b"", {"orders": PUB}),
    (324, {"topic": "ORDERS_REPLY_TOPIC"}, b"", {"ORDERS_REPLY_TOPIC": PUB}),
    (325, {"b": "DefaultCluster_REPLY_TOPIC"}, b"", {}),
    (325, {"b": "orders"}, b"", {"orders": PUB}),
    (36, {"group": "shop", "originTopic": "orders"}, b"", {"%RETRY%shop": SUB}),
    (11, {"topic": "orders", "consumerGroup": "shop"}, b"", ORDERS_OF_SHOP),
    (361, {"topic": "orders", "consumerGroup": "shop"}, b"", ORDERS_OF_SHOP),
    (12, {"topic": "orders", "key": "k"}, b"", {"orders": SUB}),
    (34, {}, heartbeat("shop", "orders", "%RETRY%shop"), ORDERS_OF_SHOP),
    (34, {}, HeartbeatData(client_id="producer").encode(), {}),
    (35, {"clientID": "c", "consumerGroup": "shop"}, b"", {"%RETRY%shop": SUB}),
    (35, {"clientID": "c", "producerGroup": "p"}, b"", {}),
    (38, {"consumerGroup": "shop"}, b"", {"%RETRY%shop": SUB}),
    (15, {"topic": "orders", "consumerGroup": "shop"}, b"", ORDERS_OF_SHOP),
    (14, {"topic": "orders", "consumerGroup": "shop"}, b"", {}),
    (41, {}, LOCK, ORDERS_OF_SHOP),
    (42, {}, UNLOCK, ORDERS_OF_SHOP),
    (222, {"topic": "orders", "group": "shop"}, b"", ORDERS_OF_SHOP),
    (314, {"topic": "orders", "srcGroup": "a", "destGroup": "shop"}, b"", ORDERS_OF_SHOP),
    (309, {"consumerGroup": "shop", "clientId": "c"}, b"", {"%RETRY%shop": SUB}),
    (307, {"consumerGroup": "shop", "clientId": "c"}, b"", {"%RETRY%shop": SUB}),
    (223, {"topic": "orders", "group": "shop"}, b"", ORDERS_OF_SHOP),
    (321, {"topic": "orders", "queueId": "0"}, b"", {"orders": SUB}),
    (30, {"topic": "orders", "queueId": "0"}, b"", {}),
    (37, {"producerGroup": "p"}, b"", {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "ext", "body", "needed"), NEEDED, ids=[f"{n}-{row[0]}" for n, row in enumerate(NEEDED)]
)
def test_each_request_needs_the_rights_of_what_it_names(
    code: int, ext: dict[str, str], body: bytes, needed: dict[str, int]
) -> None:
    """Upstream's 10, 310, 36, 11, 12, 34, 35, 38, 15, and ours beside them (docs/security.md)."""
    assert rights_of(request(code, ext, body), "DefaultCluster_REPLY_TOPIC") == needed


@pytest.mark.parametrize("code", [*sorted(ADMIN_CODES), 370, 9_999])
def test_what_changes_a_broker_needs_an_admin(code: int) -> None:
    """So does a code that has no rule."""
    known = rules(SALES, OPERATOR)
    mine = request(code)
    theirs = request(code, key="operator", secret="secret-of-operator")

    assert refusal_of(known, mine, "10.0.0.1") == (
        f"Need admin permission for request code={code}, but accessKey=salesdesk is not"
    )
    assert refusal_of(known, theirs, "10.0.0.1") is None


STORED = [
    ("orders", {}, None),
    ("salaries", {}, "No default permission for topic:salaries"),
    ("orders", {"REAL_TOPIC": "salaries", "RETRY_TOPIC": "salaries"}, None),
    ("SCHEDULE_TOPIC_XXXX", {"REAL_TOPIC": "orders"}, None),
    ("SCHEDULE_TOPIC_XXXX", {"REAL_TOPIC": "salaries"}, "No default permission for topic:salaries"),
    ("SCHEDULE_TOPIC_XXXX", {}, "Need admin permission for topic:SCHEDULE_TOPIC_XXXX"),
    ("SCHEDULE_TOPIC_XXXX", {"REAL_TOPIC": "%RETRY%shop", "RETRY_TOPIC": "salaries"},
     "No default permission for topic:salaries"),
    ("RMQ_SYS_TRANS_HALF_TOPIC", {"REAL_TOPIC": "closed"},
     "No default permission for topic:closed"),
    ("%RETRY%shop", {"RETRY_TOPIC": "orders"}, None),
    ("%RETRY%shop", {"RETRY_TOPIC": "salaries"}, "No default permission for topic:salaries"),
    ("%RETRY%shut", {"RETRY_TOPIC": "orders"}, "No default permission for group:shut"),
    ("%DLQ%shop", {"RETRY_TOPIC": "orders"}, "No default permission for topic:%DLQ%shop"),
    ("%DLQ%seen", {"RETRY_TOPIC": "salaries"}, None),
]  # fmt: skip


@pytest.mark.parametrize(("topic", "properties", "lacking"), STORED)
def test_a_stored_message_is_of_the_topic_it_was_sent_to(
    topic: str, properties: dict[str, str], lacking: str | None
) -> None:
    """Wherever it waits; dead letters are open to whom they are named for."""
    named = SALES | {"topicPerms": [*SALES["topicPerms"], "%DLQ%seen=SUB"]}
    account = rules(named).accounts["salesdesk"]
    assert lacking_to_stored(account, topic, properties, SUB) == lacking


@pytest.mark.parametrize(
    ("groups", "lacking"),
    [("SUB", None), ("DENY", "No default permission for topic:%DLQ%shop")],
)
def test_dead_letters_need_the_right_to_their_group(groups: str, lacking: str | None) -> None:
    """Unlike upstream's, where they are a topic like others."""
    account = {**SALES, "defaultTopicPerm": "SUB", "groupPerms": [f"shop={groups}", "mine=SUB"]}
    pull = request(11, {"topic": "%DLQ%shop", "consumerGroup": "mine"})
    assert refusal_of(rules(account), pull, "h") == lacking


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"])
def test_the_brokers_own_topics_are_an_admins_whatever_is_named(topic: str) -> None:
    named = {**SALES, "topicPerms": [f"{topic}=PUB|SUB"], "defaultTopicPerm": "PUB|SUB"}
    pull = {"topic": topic, "consumerGroup": "shop"}
    refused = f"Need admin permission for topic:{topic}"
    assert refusal_of(rules(named), request(11, pull), "h") == refused
    theirs = request(11, pull, key="operator", secret="secret-of-operator")
    assert refusal_of(rules(OPERATOR), theirs, "h") is None


def test_admin_codes_are_upstreams_and_those_that_would_make_anybody_an_admin() -> None:
    assert {17, 25, 200, 207, 215} < set(ADMIN_CODES)
    assert {50, 51, 53, 54} < set(ADMIN_CODES)


@pytest.mark.parametrize(
    ("code", "ext", "lacking"),
    [
        (310, {"b": "orders"}, None),
        (310, {"b": "prices"}, "topic:prices"),
        (310, {"b": "closed"}, "topic:closed"),
        (310, {"b": "unknown"}, "topic:unknown"),
        (320, {"b": "unknown"}, "topic:unknown"),
        (310, {"b": "RMQ_SYS_TRACE_TOPIC"}, None),
        (11, {"topic": "orders", "consumerGroup": "shop"}, None),
        (11, {"topic": "audit", "consumerGroup": "shop"}, "topic:audit"),
        (11, {"topic": "orders", "consumerGroup": "shut"}, "group:shut"),
        (11, {"topic": "orders", "consumerGroup": "other"}, "group:other"),
        (11, {"topic": "%RETRY%shop", "consumerGroup": "shop"}, None),
        (11, {"topic": "RMQ_SYS_TRACE_TOPIC", "consumerGroup": "shop"},
         "topic:RMQ_SYS_TRACE_TOPIC"),
    ],
)  # fmt: skip
def test_a_right_is_that_of_the_name_or_the_default(
    code: int, ext: dict[str, str], lacking: str | None
) -> None:
    refused = refusal_of(rules(SALES), request(code, ext), "10.0.0.1")
    assert refused == (lacking and f"No default permission for {lacking}")


def test_defaults_of_topics_and_groups_count_apart() -> None:
    account = SALES | {"defaultTopicPerm": "PUB|SUB", "defaultGroupPerm": "DENY"}
    pull = request(11, {"topic": "any", "consumerGroup": "any"})
    assert refusal_of(rules(account), pull, "h") == "No default permission for group:any"
    account |= {"defaultTopicPerm": "DENY", "defaultGroupPerm": "SUB"}
    assert refusal_of(rules(account), pull, "h") == "No default permission for topic:any"


def test_an_admin_has_every_right_unless_rights_are_named_for_it() -> None:
    send = request(310, {"b": "any"}, key="operator", secret="secret-of-operator")
    assert refusal_of(rules(OPERATOR), send, "h") is None
    named = OPERATOR | {"topicPerms": ["orders=PUB"]}
    assert refusal_of(rules(named), send, "h") == "No default permission for topic:any"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (RemotingCommand(310, ext_fields=None), "No accessKey is configured"),
        (RemotingCommand(310, ext_fields={"b": "orders"}), "No accessKey is configured"),
        (request(310, {"b": "orders"}, key="nobody-known"), "No acl config for nobody-known"),
        (request(310, {"b": "orders"}, secret="another-secret"),
         "Check signature failed for accessKey=salesdesk"),
        (RemotingCommand(310, ext_fields={"b": "orders", "AccessKey": "salesdesk"}),
         "Check signature failed for accessKey=salesdesk"),
    ],
    ids=["no header", "unsigned", "unknown key", "wrong secret", "key without signature"],
)  # fmt: skip
def test_refusals_are_worded_as_upstreams(command: RemotingCommand, reason: str) -> None:
    assert refusal_of(rules(SALES), command, "10.0.0.1") == reason


@pytest.mark.parametrize("changed", ["topic", "body", "added"])
def test_what_was_changed_after_signing_is_refused(changed: str) -> None:
    command = request(310, {"b": "orders"}, b"body")
    assert command.ext_fields is not None
    if changed == "topic":
        command.ext_fields["b"] = "prices"
    elif changed == "body":
        command.body = b"another"
    else:
        command.ext_fields["m"] = "true"
    refused = refusal_of(rules(SALES), command, "10.0.0.1")
    assert refused == "Check signature failed for accessKey=salesdesk"


def test_a_body_that_cannot_be_read_is_refused_and_not_let_in() -> None:
    assert refusal_of(rules(SALES), request(34, body=b"{"), "10.0.0.1")


def test_a_global_white_address_needs_nothing_and_an_accounts_own_needs_its_key() -> None:
    unsigned = RemotingCommand(17, ext_fields={"topic": "any"})
    known = rules(SALES, white=("10.0.0.*",))
    assert refusal_of(known, unsigned, "10.0.0.7") is None
    assert refusal_of(known, unsigned, "10.0.1.7") == "No accessKey is configured"

    known = rules(SALES | {"whiteRemoteAddress": "192.168.1.5"})
    named = RemotingCommand(17, ext_fields={"AccessKey": "salesdesk"})
    assert refusal_of(known, named, "192.168.1.5") is None
    assert refusal_of(known, named, "192.168.1.6") is not None
    assert refusal_of(known, unsigned, "192.168.1.5") == "No accessKey is configured"


# --- addresses ---------------------------------------------------------------------------------

ADDRESSES = [
    ("*", ["1.2.3.4", "::1", "localhost"], []),
    ("*.*.*.*", ["1.2.3.4", "::1"], []),
    ("", [], ["1.2.3.4", "::1", ""]),
    ("  ", [], ["1.2.3.4"]),
    ("192.168.0.7", ["192.168.0.7", "::ffff:192.168.0.7"], ["192.168.0.70", "192.168.0.8", ""]),
    ("192.168.0.*", ["192.168.0.0", "192.168.0.255"], ["192.168.1.0", "193.168.0.1", "::1"]),
    ("192.168.*.*", ["192.168.0.1", "192.168.255.255"], ["192.169.0.1"]),
    ("192.*.*.*", ["192.1.2.3"], ["191.1.2.3"]),
    ("192.168.0.1-100", ["192.168.0.1", "192.168.0.100"], ["192.168.0.0", "192.168.0.101"]),
    ("192.168.1-2.*", ["192.168.1.9", "192.168.2.9"], ["192.168.3.9"]),
    ("192.168.*.5", ["192.168.7.5"], ["192.168.7.77"]),
    ("192.168.0.0-0", ["192.168.0.0"], ["192.168.0.1"]),
    ("192.168.0.{1,12}", ["192.168.0.1", "192.168.0.12"], ["192.168.0.2", "192.168.0.11"]),
    ("10.0.0.1,10.0.0.3", ["10.0.0.1", "10.0.0.3"], ["10.0.0.2"]),
    ("2001:db8::1", ["2001:db8::1", "2001:0DB8:0:0:0:0:0:1"], ["2001:db8::2"]),
    ("2001:db8::*", ["2001:db8::ffff"], ["2001:db8::1:0"]),
    ("2::ac5:78:1-200:*", ["2::ac5:78:1:0", "2::ac5:78:200:9"], ["2::ac5:78:201:9"]),
    ("1050::5:600:{1,200}", ["1050::5:600:200"], ["1050::5:600:2"]),
    ("fe80::1", ["fe80::1%eth0"], ["fe80::2%eth0"]),
    ("*:*:*:*:*:*:*:*", ["1.2.3.4", "::1", "localhost"], []),
    ("192.168.0.250-255", ["192.168.0.250", "192.168.0.255"], ["192.168.0.249"]),
    ("192.168.0.255", ["192.168.0.255"], ["192.168.0.25", "192.168.255.0"]),
    ("1:2:3:4:5:6:7:fff0-ffff", ["1:2:3:4:5:6:7:ffff"], ["1:2:3:4:5:6:7:ffef", "::ffff"]),
    ("::7:*", ["::7:1"], ["::8:1", "1::7:1"]),
    ("a:b::5-6", ["a:b::5", "a:b::6"], ["a:b::7", "a:b:1::5"]),
    ("10.0.0.{7}", ["10.0.0.7"], ["10.0.0.77"]),
    ("10.0.0.{1, 2 }", ["10.0.0.1", "10.0.0.2"], ["10.0.0.0"]),
    (" 10.0.0.1 , ,10.0.0.3 ", ["10.0.0.1", "10.0.0.3"], ["10.0.0.2"]),
    ("10.0.0.1,::1", ["10.0.0.1", "::1"], ["0.0.0.1", "::a00:1"]),
    ("0.0.0.*", ["0.0.0.0"], ["::", "::1", "localhost"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "inside", "outside"), ADDRESSES, ids=[a[0] for a in ADDRESSES])
def test_an_address_rule_lets_in_what_it_names(
    text: str, inside: list[str], outside: list[str]
) -> None:
    rule = parse_rule(text)
    assert [host for host in inside if not rule.fits(host)] == []
    assert [host for host in outside if rule.fits(host)] == []


@pytest.mark.parametrize(
    "text",
    [
        "localhost", "192.168.0", "192.168.0.256", "192.168.0.9-1", "192.168.0.-5", "*.1.2.3",
        "192.168.0.{}", "192.168.0{1}", "{1}", "10.0.0.1,10.0.0.*", "2001:db8:*", "::g",
        "1:2:3:4:5:6:7:8:*", "1:2:3:4:5:6:*", "*::1", "::0-10000", "192.168.0.250-256", "a.b.c.d",
        "192.168.0{.1}", "10.0.0.{1,}", "192.168.0.7}", "}", ",", "10.0.0.1,x", "1.2.3.4.5",
        "192.168.0.1-a",
        "1:2:3:4:5:6:7:8:9-a", "1::2::3-4",
    ],
)  # fmt: skip
def test_an_address_that_means_nothing_is_refused_with_what_is_accepted(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"accepted are \*, 192"):
        parse_rule(text)


# --- documents ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "the file is list"),
        ({"accounts": {}}, "accounts is dict"),
        ({"accounts": ["x"]}, "account 1 is str"),
        ({"accounts": [{"secretKey": SECRET}]}, "accessKey of account 1"),
        ({"accounts": [SALES | {"accessKey": "short1"}]}, "'short1': give 7 characters"),
        ({"accounts": [SALES | {"secretKey": "short1"}]}, "secretKey of account 'salesdesk'"),
        ({"accounts": [SALES | {"secretKey": 1.5e9}]}, "put it in quotes"),
        ({"accounts": [SALES | {"admin": "perhaps"}]}, "give true or false"),
        ({"accounts": [SALES | {"topicPerms": ["orders"]}]}, "write NAME=PUB|SUB"),
        ({"accounts": [SALES | {"topicPerms": "orders=PUB"}]}, "give a list"),
        ({"accounts": [SALES | {"whiteRemoteAddress": "somewhere"}]}, "'somewhere' is not"),
        ({"globalWhiteRemoteAddresses": ["somewhere"]}, "'somewhere' is not"),
        ({"dataVersion": [{"counter": "x"}]}, "whole numbers"),
    ],
)
def test_a_document_that_cannot_be_meant_is_refused_with_where(document: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_document(document)
    assert said in str(refused.value)
    assert "short1" not in str(refused.value).partition("secretKey")[2]


def test_numbers_are_keys_as_they_are_written() -> None:
    account = parse_document({"accounts": [SALES | {"secretKey": 12345678}]}).accounts[0]
    assert account.secret_key == "12345678"
    assert "12345678" not in repr(account)


def test_what_counts_for_less_than_it_may_mean_is_a_warning() -> None:
    account = SALES | {"defaultTopicPerm": "ALL", "topicPerm": [], "topicPerms": ["a=pub"]}
    document = parse_document({"accounts": [account, SALES], "account": []})
    text = "\n".join(document.warnings)
    assert "'account' is unknown" in text
    assert "'topicPerm' of account 'salesdesk' is unknown" in text
    assert "'ALL' is not one of PUB" in text
    assert "a: 'pub' is not one of" in text
    assert "'salesdesk' is given twice" in text
    assert document.accounts[0].default_topic_perm & (PUB | SUB) == 0


@pytest.mark.parametrize(
    ("entries", "version"),
    [
        (None, (0, 0)),
        ([], (0, 0)),
        ([{}], (0, 0)),
        ([{"counter": 4}], (4, 0)),
        ([{"timestamp": 9}], (0, 9)),
        ([{"counter": 4, "timestamp": 9}], (4, 9)),
    ],
)
def test_what_a_version_leaves_out_is_zero(entries: Any, version: tuple[int, int]) -> None:
    document = parse_document({"dataVersion": entries})
    assert (document.counter, document.timestamp) == version


def test_an_empty_file_lets_nobody_in() -> None:
    empty = parse_document(None)
    assert (empty.accounts, empty.counter, empty.timestamp) == ((), 0, 0)
    assert refusal_of(join([("f", parse_document(None))]), request(310), "h")


def test_an_account_counts_in_the_file_that_comes_first() -> None:
    first = parse_document({"accounts": [SALES]})
    second = parse_document({"accounts": [SALES | {"admin": True}, OPERATOR]})
    joined = join([("acl/a.yml", first), ("plain_acl.yml", second)])
    assert joined.homes == {"salesdesk": "acl/a.yml", "operator": "plain_acl.yml"}
    assert not joined.accounts["salesdesk"].is_admin
    assert "accessKey 'salesdesk' is in acl/a.yml too" in joined.warnings[0]


# --- edits -------------------------------------------------------------------------------------

UPDATE = AccountUpdate("salesdesk", "another-secret", topic_perms=["orders=SUB"])


def test_an_account_is_changed_where_something_is_given_and_the_rest_stays() -> None:
    before: dict[str, Any] = {"note": "ours", "accounts": [SALES | {"admin": True}, OPERATOR]}
    after = update_account(before, UPDATE, 7)
    assert after["note"] == "ours"
    assert after["accounts"] == [
        OPERATOR,
        SALES | {"secretKey": "another-secret", "admin": False, "topicPerms": ["orders=SUB"]},
    ]
    assert after["dataVersion"] == [{"counter": 1, "timestamp": 7}]
    assert before["accounts"][0]["topicPerms"] == SALES["topicPerms"], "the old one is untouched"


def test_a_new_account_comes_last_and_an_empty_file_takes_one() -> None:
    new = dataclasses.replace(UPDATE, access_key="warehouse", default_topic_perm="SUB")
    after = update_account({"accounts": [SALES]}, new, 7)
    assert [account["accessKey"] for account in after["accounts"]] == ["salesdesk", "warehouse"]
    assert after["accounts"][1]["defaultTopicPerm"] == "SUB"
    assert update_account(None, new, 7)["accounts"][0]["accessKey"] == "warehouse"


def test_deleting_and_white_addresses_count_the_version_up() -> None:
    document = {"accounts": [SALES, OPERATOR], "dataVersion": [{"counter": 4, "timestamp": 1}]}
    after = delete_account(document, "salesdesk", 9)
    assert after["accounts"] == [OPERATOR]
    assert after["dataVersion"] == [{"counter": 5, "timestamp": 9}]
    after = set_white_addresses(after, ["10.0.0.*"], 11)
    assert after["globalWhiteRemoteAddresses"] == ["10.0.0.*"]
    assert after["dataVersion"] == [{"counter": 6, "timestamp": 11}]


def test_keys_of_seven_characters_are_long_enough() -> None:
    dataclasses.replace(UPDATE, access_key="seven77", secret_key="seven77").check()


def test_of_several_versions_the_first_is_counted_on() -> None:
    """As upstream, which writes one and reads the first."""
    document = {"dataVersion": [{"counter": 4, "timestamp": 1}, {"counter": 8, "timestamp": 2}]}
    after = set_white_addresses(document, [], 11)
    assert after["dataVersion"] == [{"counter": 5, "timestamp": 11}]


def test_a_first_change_has_version_one() -> None:
    after = set_white_addresses({}, ["10.0.0.*"], 11)
    assert after["dataVersion"] == [{"counter": 1, "timestamp": 11}]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"access_key": "short1"}, "cannot be null and length should longer than 6"),
        ({"secret_key": None}, "cannot be null and length should longer than 6"),
        ({"topic_perms": ["orders"]}, "Parse Resource format error for orders."),
        ({"group_perms": ["g=ALL"]}, "Parse resource permission error for g=ALL."),
    ],
)
def test_an_update_is_checked_in_upstreams_words(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        dataclasses.replace(UPDATE, **changes).check()
    assert said in str(refused.value)
    assert "another-secret" not in str(refused.value)


def test_every_code_with_rights_is_one_we_know() -> None:
    assert all(RequestCode(row[0]) for row in NEEDED)


@pytest.mark.parametrize(
    ("entries", "version"),
    [
        (None, (0, 0)),
        ([], (0, 0)),
        ([{}], (0, 0)),
        ([{"counter": 3}], (3, 0)),
        ([{"timestamp": 9}], (0, 9)),
        ([{"counter": 3, "timestamp": 9}, {"counter": 8}], (3, 9)),
    ],
)
def test_a_file_has_the_version_of_its_first_entry(
    entries: list[dict[str, int]] | None, version: tuple[int, int]
) -> None:
    read = parse_document({} if entries is None else {"dataVersion": entries})
    assert (read.counter, read.timestamp) == version


def test_the_account_that_counts_is_the_one_whose_keys_were_needed() -> None:
    """What a request may show depends on it; from an address that needs no keys everything."""
    known = rules(SALES, OPERATOR | {"whiteRemoteAddress": "192.168.1.5"}, white=("10.0.0.*",))
    mine = "salesdesk"
    found = account_of(known, mine, "192.168.1.5")
    assert found is known.accounts["salesdesk"]
    assert account_of(known, mine, "10.0.0.7") is None
    assert account_of(known, "operator", "192.168.1.5") is None
    assert account_of(known, "operator", "192.168.1.6") is known.accounts["operator"]
    assert account_of(known, None, "192.168.1.6") is None


@pytest.mark.parametrize(
    ("needed", "lacking"),
    [
        ({}, None),
        ({"orders": PUB, "prices": SUB}, None),
        ({"orders": PUB, "prices": PUB}, "No default permission for topic:prices"),
        ({"audit": PUB}, None),
        ({"audit": SUB}, "No default permission for topic:audit"),
        ({"%RETRY%shop": SUB}, None),
        ({"%RETRY%shop": PUB}, "No default permission for group:shop"),
        ({"closed": SUB}, "No default permission for topic:closed"),
    ],
)
def test_the_first_right_that_lacks_is_named(needed: dict[str, int], lacking: str | None) -> None:
    account = rules(SALES).accounts["salesdesk"]
    assert lacking_rights(account, needed) == lacking
    assert lacking_rights(rules(OPERATOR).accounts["operator"], needed) is None


def test_an_admin_with_rights_of_its_own_still_does_what_admins_do() -> None:
    named = rules(OPERATOR | {"topicPerms": ["orders=PUB"]})
    command = request(17, {"topic": "new"}, key="operator", secret="secret-of-operator")
    assert refusal_of(named, command, "h") is None


def test_only_writing_of_trace_is_open_to_every_account() -> None:
    """Its group too, which the pull of a trace topic names as any other."""
    topic = "RMQ_SYS_TRACE_TOPIC"
    assert refusal_of(rules(SALES), request(310, {"b": topic}), "h") is None
    named = {"b": topic, "group": "shut"}
    assert refusal_of(rules(SALES), request(310, named), "h") is None
    pulled = request(11, {"topic": topic, "consumerGroup": "shop"})
    assert refusal_of(rules(SALES), pulled, "h") == f"No default permission for topic:{topic}"


def test_a_key_of_any_length_is_repeated_in_part() -> None:
    """A peer decides how long it is, and it goes into an answer and a log."""
    command = request(310, key="k" * 129)
    assert refusal_of(rules(SALES), command, "h") == "No acl config for " + "k" * 128


def test_requests_that_change_a_broker_are_these() -> None:
    """Upstream's five, four that would make an account an admin, four that touch others' data."""
    assert set(ADMIN_CODES) == {17, 25, 200, 207, 215, 50, 51, 53, 54, 306, 316, 329, 323}


@pytest.mark.parametrize("code", [10, 310, 320, 324, 325, 36, 11, 361, 12, 35, 38, 15, 222])
def test_a_request_that_names_nothing_needs_no_right(code: int) -> None:
    """The handler refuses it for what is missing."""
    assert rights_of(RemotingCommand(code, ext_fields=None)) == {}
    assert rights_of(RemotingCommand(code, ext_fields={})) == {}


@pytest.mark.parametrize("topic", [{}, {"topic": ""}, {"topic": " "}])
def test_a_copy_of_the_offsets_in_all_topics_needs_an_admin(topic: dict[str, str]) -> None:
    """Code 314 without a topic moves the group in topics its account may not read."""
    names = {"srcGroup": "a", "destGroup": "shop"} | topic
    assert rights_of(RemotingCommand(314, ext_fields=names)) is None
    padded = rights_of(RemotingCommand(314, ext_fields=names | {"topic": " orders"}))
    assert padded == {" orders": SUB, "%RETRY%shop": SUB}


def test_a_heartbeat_of_several_groups_needs_the_rights_of_all() -> None:
    consumers = [
        ConsumerData(group_name=group, subscription_data_set=[SubscriptionData(topic=topic)])
        for group, topic in (("shop", "orders"), ("bar", "prices"))
    ]
    body = HeartbeatData(client_id="c", consumer_data_set=consumers).encode()
    assert rights_of(request(34, body=body)) == {
        "%RETRY%shop": SUB,
        "orders": SUB,
        "%RETRY%bar": SUB,
        "prices": SUB,
    }


# --- documents and edits, at their edges -------------------------------------------------------


def test_an_account_of_just_its_keys_may_do_nothing() -> None:
    (account,) = parse_document(
        {"accounts": [{"accessKey": 1234567, "secretKey": "1234567"}]}
    ).accounts
    assert (account.access_key, account.is_admin, dict(account.perms)) == ("1234567", False, {})
    assert not account.default_topic_perm & (PUB | SUB)
    assert not account.default_group_perm & (PUB | SUB)
    assert not account.addresses.fits("127.0.0.1")
    assert account.settings == {
        "accessKey": "1234567", "secretKey": "1234567", "whiteRemoteAddress": None,
        "defaultTopicPerm": None, "defaultGroupPerm": None, "admin": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "topic", "rights"),
    [
        ("a=PUB", "a", PUB), ("a=SUB", "a", SUB), ("a=PUB|SUB", "a", PUB | SUB),
        ("a=SUB|PUB", "a", PUB | SUB), ("a=DENY", "a", 0), (" a = PUB ", "a", PUB),
        ("a==PUB", "a", PUB),
    ],
)  # fmt: skip
def test_a_line_of_rights_is_a_name_and_one_of_five(text: str, topic: str, rights: int) -> None:
    """Covers the forms of plain_acl.yml; the same lines are those of groups."""
    document = parse_document({"accounts": [SALES | {"topicPerms": [text], "groupPerms": [text]}]})
    perms = document.accounts[0].perms
    assert set(perms) == {topic, f"%RETRY%{topic}"}
    assert {perm & (PUB | SUB) for perm in perms.values()} == {rights}
    assert document.warnings == ()


@pytest.mark.parametrize("text", ["a", "=", "a=", "a=PUB=SUB"])
def test_a_line_of_rights_without_both_is_refused(text: str) -> None:
    for name in ("topicPerms", "groupPerms"):
        with pytest.raises(ConfigurationError, match=f"{name} of account 'salesdesk'"):
            parse_document({"accounts": [SALES | {name: [text]}]})
        with pytest.raises(ConfigurationError, match="Parse Resource format error"):
            AccountUpdate("salesdesk", SECRET, topic_perms=[text]).check()


@pytest.mark.parametrize(
    ("value", "is_admin"),
    [(True, True), (False, False), (None, False), ("true", True), (" TRUE ", True),
     ("false", False), ("", False)],
)  # fmt: skip
def test_an_admin_is_who_the_file_says_is_one(value: object, is_admin: bool) -> None:
    account = parse_document({"accounts": [SALES | {"admin": value}]}).accounts[0]
    assert account.is_admin is is_admin


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"accounts": [SALES, SALES | {"accessKey": None}]}, "accessKey of account 2 is None"),
        ({1: 2}, "the file is dict: give a table of names"),
        ({"accounts": [SALES | {"topicPerms": [None]}]}, "has an empty entry"),
        ({"accounts": [SALES | {"accessKey": True}]}, "True, which YAML reads as bool"),
        ({"accounts": [SALES | {"secretKey": True}]}, "what YAML reads as bool: put it in quotes"),
        ({"accounts": [SALES | {"admin": 1}]}, "is 1: give true or false"),
        ({"dataVersion": [{"counter": True}]}, "whole numbers"),
        ({"dataVersion": [{"counter": 1, "timestamp": 1.5}]}, "whole numbers"),
        ({"dataVersion": {}}, "dataVersion is dict"),
        ({"dataVersion": ["x"]}, "dataVersion is str"),
    ],
)
def test_what_yaml_made_of_a_document_is_said(document: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_document(document)
    assert said in str(refused.value)


def test_a_usual_document_has_no_warnings_and_joined_ones_keep_theirs() -> None:
    first = parse_document({"accounts": [SALES], "globalWhiteRemoteAddresses": ["10.0.0.1"]})
    assert first.warnings == ()
    assert first.white == ("10.0.0.1",)
    second = parse_document(
        {"accounts": [OPERATOR], "note": 1, "globalWhiteRemoteAddresses": ["::1"]}
    )
    joined = join([("a.yml", first), ("b.yml", second)])
    assert joined.warnings == ("b.yml: 'note' is unknown and ignored",)
    assert [rule.fits("::1") for rule in joined.white] == [False, True]
    assert set(joined.accounts) == {"salesdesk", "operator"}


@pytest.mark.parametrize("keys", [("seven77", "short1"), ("short1", "seven77"), ("", "seven77")])
def test_either_key_of_an_update_may_be_too_short(keys: tuple[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="cannot be null and length should longer than 6"):
        AccountUpdate(*keys).check()


def test_an_update_may_deny_and_may_give_nothing() -> None:
    AccountUpdate("salesdesk", SECRET).check()
    AccountUpdate(
        "salesdesk", SECRET, topic_perms=["a=DENY", "b=SUB|PUB"], group_perms=["g= DENY "]
    ).check()
    with pytest.raises(ConfigurationError, match="Parse resource permission error for a=ANY"):
        AccountUpdate("salesdesk", SECRET, topic_perms=["b=PUB", "a=ANY"]).check()


def test_an_update_sets_all_it_gives() -> None:
    given = AccountUpdate(
        "salesdesk", "another-secret", "10.0.0.1", admin=True, default_topic_perm="PUB",
        default_group_perm="SUB", topic_perms=[], group_perms=["g=SUB"],
    )  # fmt: skip
    after = update_account({"accounts": [SALES]}, given, 7)
    assert after["accounts"] == [
        {
            "accessKey": "salesdesk", "secretKey": "another-secret", "admin": True,
            "whiteRemoteAddress": "10.0.0.1", "defaultTopicPerm": "PUB",
            "defaultGroupPerm": "SUB", "topicPerms": [], "groupPerms": ["g=SUB"],
        }
    ]  # fmt: skip
    bare = update_account({"accounts": [SALES]}, AccountUpdate("salesdesk", "another-secret"), 7)
    assert bare["accounts"] == [SALES | {"secretKey": "another-secret", "admin": False}]
    blank = AccountUpdate("salesdesk", SECRET, default_topic_perm="", default_group_perm="")
    assert update_account({"accounts": [SALES]}, blank, 7)["accounts"] == [SALES | {"admin": False}]


def test_an_edit_changes_the_document_it_returns_and_no_other() -> None:
    """The old one counts until the new one is written."""
    before: dict[str, Any] = {"accounts": [SALES | {"accessKey": 1234567}, OPERATOR]}
    update_account(before, AccountUpdate("1234567", "another-secret"), 7)
    update_account(before, AccountUpdate("newcomer", "another-secret"), 7)
    delete_account(before, "1234567", 7)
    set_white_addresses(before, ["::1"], 7)
    assert before == {"accounts": [SALES | {"accessKey": 1234567}, OPERATOR]}
    after = update_account(before, AccountUpdate("1234567", "another-secret"), 7)
    assert [account["accessKey"] for account in after["accounts"]] == ["operator", "1234567"]
    assert delete_account(before, "1234567", 7)["accounts"] == [OPERATOR]
    assert delete_account(None, "1234567", 7)["accounts"] == []
    assert delete_account({"accounts": []}, "x", 7)["accounts"] == []
