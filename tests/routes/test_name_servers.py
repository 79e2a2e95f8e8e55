"""Name servers: which is asked next, and which answers count."""

from __future__ import annotations

from typing import TypeVar

import pytest

from rocketstream.client.instance.questions import LookUp, NameServers, not_name_server
from rocketstream.errors import (
    BrokerError,
    ConfigurationError,
    ConnectError,
    RemoteProtocolError,
    RequestNotSupportedError,
    TopicNotExistError,
)
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand

T = TypeVar("T")
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


def request() -> RemotingCommand:
    return RemotingCommand.request(ROUTE)


def answer(code: int, body: bytes = b"") -> RemotingCommand:
    found = RemotingCommand.response(code, None)
    found.body = body
    return found


def read(said: RemotingCommand) -> bytes:
    if said.body == b"senseless":
        raise RemoteProtocolError("it makes no sense")
    return bytes(said.body)


def run(
    look_up: LookUp[T],
    answers: dict[str, RemotingCommand | Exception],
    names: list[str] | None = None,
) -> tuple[T, list[tuple[str, int]]]:
    """Answer a look-up by address; return what it finds, and who was asked for what.

    The addresses are added to ``names`` as well, also of a look-up that fails.
    """
    asked = []
    try:
        address, command = next(look_up)
        while True:
            asked.append((address, command.code))
            if names is not None:
                names.append(address)
            said = answers[address]
            if isinstance(said, Exception):
                address, command = look_up.throw(said)
            else:
                address, command = look_up.send(said)
    except StopIteration as end:
        return end.value, asked


GONE = ConnectError("nobody there")
WELL = answer(0, b"well")


def test_the_one_that_answered_last_is_asked_first() -> None:
    """Covers C-139."""
    servers = NameServers(["a", "b", "c"])
    answers: dict[str, RemotingCommand | Exception] = {"a": GONE, "b": WELL, "c": WELL}
    assert run(servers.look_up(request, read), answers) == (b"well", [("a", ROUTE), ("b", ROUTE)])
    assert run(servers.look_up(request, read), answers) == (b"well", [("b", ROUTE)])
    answers["b"] = GONE
    assert run(servers.look_up(request, read), answers)[1] == [("b", ROUTE), ("c", ROUTE)]
    answers["c"] = GONE
    answers["a"] = WELL
    assert run(servers.look_up(request, read), answers)[1] == [("c", ROUTE), ("a", ROUTE)]


def test_a_look_up_goes_on_though_another_has_found_the_living_one_meanwhile() -> None:
    """Covers C-139: two fail together at the dead one; the second skips nobody."""
    servers = NameServers(["a", "b"])
    slow = servers.look_up(request, read)
    assert next(slow)[0] == "a"
    run(servers.look_up(request, read), {"a": GONE, "b": WELL})
    assert slow.throw(GONE)[0] == "b"


def test_servers_that_are_replaced_meanwhile_keep_their_order() -> None:
    servers = NameServers(["a", "b"])
    slow = servers.look_up(request, read)
    next(slow)
    slow.throw(GONE)
    servers.replace(["c", "d"])
    with pytest.raises(StopIteration):
        slow.send(WELL)
    assert next(servers.look_up(request, read))[0] == "c"
    run(servers.look_up(request, read), {"c": GONE, "d": WELL})
    servers.replace(["e", "f"])
    assert next(servers.look_up(request, read))[0] == "e"


def test_no_such_topic_is_believed_when_all_that_answer_say_so() -> None:
    """One that was just started knows none. A dead one costs every second such look-up its time."""
    servers = NameServers(["a", "b"])
    unknown = answer(ResponseCode.TOPIC_NOT_EXIST)
    answers: dict[str, RemotingCommand | Exception] = {"a": unknown, "b": WELL}
    assert run(servers.look_up(request, read), answers)[0] == b"well"
    servers = NameServers(["a", "b"])
    answers["b"] = GONE
    asked: list[str] = []
    for _ in range(4):
        with pytest.raises(TopicNotExistError):
            run(servers.look_up(request, read), answers, asked)
    assert asked == ["a", "b", "a", "a", "b", "a"]
    answers["b"] = WELL
    assert run(servers.look_up(request, read), answers)[0] == b"well"


def test_an_answer_that_makes_no_sense_counts_as_none() -> None:
    servers = NameServers(["a", "b"])
    senseless = answer(0, b"senseless")
    assert run(servers.look_up(request, read), {"a": senseless, "b": WELL})[0] == b"well"
    servers = NameServers(["a", "b"])
    with pytest.raises(RemoteProtocolError) as caught:
        run(servers.look_up(request, read, "the route", topic="T"), {"a": senseless, "b": GONE})
    assert caught.value.message.startswith(
        "the route cannot be used (a: it makes no sense; b: nobody there); check"
    )
    assert caught.value.parameters == {"topic": "T", "address": "a"}
    with pytest.raises(RemoteProtocolError, match=r"^the answer cannot be used"):
        run(NameServers(["a"]).look_up(request, read), {"a": senseless})


def test_none_that_answers_is_an_error_that_names_each() -> None:
    servers = NameServers(["a", "b"])
    with pytest.raises(ConnectError) as caught:
        run(servers.look_up(request, read, "the route", topic="T"), {"a": GONE, "b": GONE})
    assert caught.value.message.startswith(
        "no name server answered for the route (a: nobody there; b: nobody there); is one running"
    )
    assert caught.value.parameters == {"topic": "T", "addresses": ["a", "b"]}
    with pytest.raises(ConnectError, match=r"^no name server answered \(a: "):
        run(NameServers(["a"]).look_up(request, read), {"a": GONE})
    with pytest.raises(ConnectError, match="the route cannot be asked for: the address server has"):
        next(NameServers([]).look_up(request, read, "the route"))


def test_a_refusal_is_an_answer_and_no_other_is_asked() -> None:
    refused = answer(ResponseCode.SYSTEM_ERROR)
    with pytest.raises(BrokerError, match="CODE: 1 from a") as caught:
        run(NameServers(["a", "b"]).look_up(request, read), {"a": refused})
    assert caught.value.address == "a"


def test_a_broker_is_told_by_what_it_answers_to_a_question_for_brokers() -> None:
    servers = NameServers(["a", "b"])

    def refused() -> LookUp[bytes]:
        look_up = servers.look_up(request, read)
        next(look_up)
        address, command = look_up.send(answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
        assert (address, command.code) == ("a", RequestCode.GET_BROKER_CONFIG)
        return look_up

    with pytest.raises(ConfigurationError, match="a is broker 'x', not a name server"):
        refused().send(answer(0, b"brokerName=x"))
    with pytest.raises(RequestNotSupportedError):
        refused().send(answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
    for failure in (GONE, RemoteProtocolError("garbage")):
        with pytest.raises(RequestNotSupportedError):
            refused().throw(failure)


def test_what_a_broker_tells_of_itself_may_be_missing_or_refused() -> None:
    for told in (
        answer(ResponseCode.SUCCESS, b"\xff\xfe not what was expected"),
        answer(ResponseCode.SUCCESS),
        answer(ResponseCode.NO_PERMISSION),
    ):
        error = not_name_server("10.0.0.1:10911", told)
        assert error is not None
        assert error.message == (
            "10.0.0.1:10911 is a broker, not a name server; give its name server's address"
        )
    assert not_name_server("a:1", answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)) is None


@pytest.mark.parametrize(("before", "is_read"), [(0, False), (13, True)])
def test_a_mebibyte_is_read_of_what_a_broker_tells_of_itself(before: int, is_read: bool) -> None:
    told = b"#" * ((1 << 20) - before) + b"\nbrokerName=b"
    error = not_name_server("a:1", answer(ResponseCode.SUCCESS, told))
    assert error is not None
    assert ("broker 'b'" in error.message) is is_read
