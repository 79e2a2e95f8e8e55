"""The metrics over HTTP: rendered once a sweep, no broker asked, nobody else let in."""

from __future__ import annotations

import gzip
import http.client
import selectors
import socket
import threading
from collections.abc import Iterator
from typing import Any, cast
from unittest import mock

import pytest

from rocketstream._util.workers import Workers
from rocketstream.errors import ConfigurationError, PortInUseError
from rocketstream.watch import Collector
from rocketstream.watch.exporter import REQUESTS_AT_ONCE_MAX, Exporter
from tests.kits.scraped import read
from tests.kits.states import Asked, ByHand, by_lag, waiting

DEADLINE_S = 10


class Scraped:
    """A collector moved by hand, and a server of its metrics."""

    def __init__(self) -> None:
        self.asked = Asked(waiting(7))
        self.hand = ByHand()
        self.collector = Collector(
            lambda: cast(Any, self.asked), judge=by_lag, workers=cast(Workers, self.hand)
        )
        self.collector.start()
        self.exporter = Exporter(self.collector, port=0)

    def get(
        self, path: str = "/metrics", method: str = "GET", **headers: str
    ) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection(*self.exporter.address, timeout=DEADLINE_S)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()


@pytest.fixture
def scraped() -> Iterator[Scraped]:
    rig = Scraped()
    yield rig
    rig.exporter.close()


def test_scrapes_ask_no_broker_and_render_once_a_sweep(scraped: Scraped) -> None:
    scraped.hand.step()
    with mock.patch("rocketstream.watch.exporter.scrape", return_value="x 1\n") as scrape:
        bodies = {scraped.get()[1] for _ in range(5)}
        assert bodies == {b"x 1\n"}
        assert scrape.call_count == 1
    assert scraped.asked.sweeps == 1


def test_what_is_scraped_is_what_the_last_sweep_found(scraped: Scraped) -> None:
    assert b"lag" not in scraped.get()[1]
    scraped.hand.step()
    answer, body = scraped.get()
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    lag = read(body.decode())["rocketstream_group_lag_messages"]
    assert lag == {(("group", "billing"),): 7}


def test_an_answer_is_compressed_for_who_can_read_it(scraped: Scraped) -> None:
    scraped.hand.step()
    _, plain = scraped.get()
    answer, body = scraped.get(**{"Accept-Encoding": "gzip, deflate"})
    assert answer.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(body) == plain


def test_other_paths_and_methods_are_refused(scraped: Scraped) -> None:
    assert scraped.get("/")[0].status == 200
    assert scraped.get("/etc/passwd")[0].status == 404
    assert scraped.get(method="POST")[0].status == 501
    answer, body = scraped.get(method="HEAD")
    assert (answer.status, body) == (200, b"")


def test_an_address_others_can_reach_must_be_allowed(scraped: Scraped) -> None:
    for host in ("0.0.0.0", "192.168.1.1", "::", "example.org"):
        with pytest.raises(ConfigurationError, match="--insecure"):
            Exporter(scraped.collector, host, 0)
    with Exporter(scraped.collector, "0.0.0.0", 0, insecure=True) as open_to_all:
        assert open_to_all.address[1] > 0


def test_a_taken_port_is_named(scraped: Scraped) -> None:
    port = scraped.exporter.address[1]
    with pytest.raises(PortInUseError, match=str(port)):
        Exporter(scraped.collector, port=port)


def test_half_sent_requests_shut_nobody_out(scraped: Scraped) -> None:
    scraped.hand.step()
    silent = []
    for _ in range(3 * REQUESTS_AT_ONCE_MAX):
        silent.append(socket.create_connection(scraped.exporter.address, DEADLINE_S))
        silent[-1].sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")
    assert scraped.get()[0].status == 200
    for each in silent:
        each.close()


def test_an_exporter_nobody_asks_sleeps_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looked twenty times a second whether it was to end."""
    waits: list[float | None] = []
    kinds: set[Any] = {selectors.DefaultSelector, getattr(selectors, "PollSelector", None)}
    for kind in kinds - {None}:

        def watched(self: Any, timeout: float | None = None, plain: Any = kind.select) -> Any:
            if threading.current_thread().name == "rocketstream-metrics":
                waits.append(timeout)
            return plain(self, timeout)

        monkeypatch.setattr(kind, "select", watched)
    exporter = Exporter(cast(Collector, mock.Mock(spec=Collector)), port=0)
    connection = http.client.HTTPConnection(*exporter.address, timeout=10)
    connection.request("GET", "/")
    assert connection.getresponse().read().startswith(b"rocketstream")
    connection.close()
    exporter.close()
    exporter.close()
    assert waits
    assert not any(waits)  # None is for ever, 0 a look
