"""TLS over the simulated network, and a simulated cluster that speaks it alone."""

from __future__ import annotations

import ssl
from typing import Any

import pytest

from rocketstream import Message, aio
from rocketstream.errors import SendError, SendOutcome
from rocketstream.testing.sim.cluster import Cluster
from rocketstream.testing.sim.faults import Faults
from rocketstream.testing.sim.network import Endpoint
from rocketstream.testing.sim.options import IN_HANDSHAKE, Options
from rocketstream.testing.sim.runs import simulated
from rocketstream.testing.sim.tls import server_tls, stuck, trusting
from rocketstream.testing.sim.world import Node
from rocketstream.transport.tls import client_context, is_no_tls
from tests.scenarios.campaign import run_seed
from tests.scenarios.draws import CERTIFICATE
from tests.simulation.net import PORT, THERE, Net, Recorder
from tests.simulation.orders import TOPIC, run_orders

STRUCK = Options(
    seed=1, messages=60, fault_ms=15_000, fault_interval_ms=300, tls=CERTIFICATE,
    faults=(IN_HANDSHAKE, "reset"),
)  # fmt: skip
SHAKES_S = 10.0


class SecretNet(Net):
    """Two machines; the one that listens speaks TLS."""

    def listen(self, *, echo: bool = False) -> None:
        def factory() -> Recorder:
            self.servers.append(Recorder(echo=echo))
            return self.servers[-1]

        context = server_tls(CERTIFICATE).context()
        self.there.create_task(
            self.there.create_server(
                factory, THERE, PORT, ssl=context, ssl_handshake_timeout=SHAKES_S
            )
        )
        self.run(0.1)

    def error_of(self, context: ssl.SSLContext | None, seconds: float = 1.0) -> BaseException:
        """Connect, and return how that fails."""
        connecting = self.here.create_connection(lambda: self.client, THERE, PORT, ssl=context)
        error = self.do(connecting, seconds).exception()
        assert error is not None
        return error

    def endpoints(self) -> list[Endpoint]:
        """Return the sides of connections the listening machine has."""
        return list(self.network.hosts[THERE].endpoints.values())


def test_bytes_come_as_they_were_sent_and_others_are_on_the_way() -> None:
    net, told = SecretNet(), list[str]()
    net.network._report = told.append
    net.listen(echo=True)
    connecting = net.here.create_connection(
        lambda: net.client, THERE, PORT, ssl=trusting(CERTIFICATE)
    )
    net.do(connecting).result()
    net.client.transport.write(b"hello" * 40_000)
    net.run(1)
    assert net.client.data == b"hello" * 40_000
    assert net.client.transport.get_extra_info("sslcontext") is not None
    assert sum("data" in each for each in told) == sum("secret" in each for each in told) > 5
    net.client.transport.close()
    net.run(1)
    assert [net.client.lost, net.servers[0].lost] == [[None], [None]]
    assert not net.endpoints()


def test_a_certificate_nobody_trusts_ends_the_handshake_before_a_byte_of_the_process() -> None:
    net = SecretNet()
    net.listen()
    error = net.error_of(client_context())
    assert isinstance(error, ssl.SSLCertVerificationError)
    assert net.servers[0].transport is None
    assert not net.endpoints()


def test_who_speaks_plainly_to_a_server_with_tls_is_disconnected() -> None:
    net = SecretNet()
    net.listen()
    net.connect()
    net.client.transport.write(b"hello")
    net.run(1)
    assert net.client.lost == [None]
    assert net.servers[0].transport is None


def test_an_answer_that_is_no_tls_is_told_from_a_bad_certificate() -> None:
    net = SecretNet()
    net.listen()

    def strike(mine: Endpoint) -> None:
        assert mine.incoming is not None
        mine.incoming.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    net.network.strike = strike
    error = net.error_of(trusting(CERTIFICATE))
    assert isinstance(error, OSError)
    assert is_no_tls(error)


@pytest.mark.parametrize("way", ["out", "incoming"])
def test_a_server_gives_up_a_handshake_that_goes_silent(way: str) -> None:
    net = SecretNet()
    net.listen()
    net.network.strike = lambda mine: getattr(mine, way).silence()
    task = net.here.create_task(
        net.here.create_connection(
            lambda: net.client, THERE, PORT, ssl=trusting(CERTIFICATE), ssl_handshake_timeout=60
        )
    )
    net.run(SHAKES_S - 1)
    assert [stuck(side.transport, net.scheduler.now + 9) for side in net.endpoints()] == [True]
    net.run(2)
    assert not net.endpoints()
    task.cancel()
    net.run(1)


def test_a_handshake_that_is_cut_anywhere_ends_with_an_error() -> None:
    """Cut at each 97th byte of the server's, and let through behind them."""

    def ending(size: int) -> bool:
        net = SecretNet()
        net.listen()

        def strike(mine: Endpoint) -> None:
            assert mine.incoming is not None
            mine.incoming.cut_after(size)

        net.network.strike = strike
        task = net.do(
            net.here.create_connection(lambda: net.client, THERE, PORT, ssl=trusting(CERTIFICATE))
        )
        error = task.exception()
        assert error is None or isinstance(error, OSError)
        return error is None

    ends = [ending(size) for size in range(1, 3_000, 97)]
    assert not ends[0]
    assert ends[-1]
    assert ends == sorted(ends)


def told(settings: dict[str, Any]) -> str:
    """Return the error of a producer in a calm cluster that speaks TLS alone."""
    options = Options(seed=1, tls=CERTIFICATE)
    errors: list[SendError] = []
    with simulated(1, options) as world:
        cluster = Cluster(world)
        cluster.create_topic(TOPIC)

        async def produce(node: Node) -> None:
            async with aio.Producer("p", **node.client(**settings)) as producer:
                try:
                    await producer.send(Message(TOPIC, b"x"))
                except SendError as error:
                    errors.append(error)

        producer = world.add_node("producer", produce)
        cluster.start()
        assert world.run(20, lambda: cluster.is_ready)
        producer.start()
        assert world.run(60, lambda: bool(errors))
        assert not cluster.stored(TOPIC)
    assert errors[0].outcome is SendOutcome.NOT_SENT
    return str(errors[0])


def test_a_producer_is_told_why_a_server_with_tls_is_not_for_it() -> None:
    assert "certificate verify failed" in told({"ssl_context": client_context()})
    assert "need use_tls=True" in told({"ssl_context": None})


def test_what_is_acknowledged_is_consumed_though_handshakes_fail() -> None:
    result = run_orders(STRUCK)
    assert result.ok, result.report()
    assert result.faults[IN_HANDSHAKE] > 5


def test_nobody_is_struck_once_faults_are_over() -> None:
    with simulated(1, STRUCK) as world:
        Cluster(world)
        faults = Faults(world)
        assert not faults._table[IN_HANDSHAKE]()
        faults.end()
        assert world.network.strike is None


@pytest.mark.parametrize("seed", [0, 14])
def test_a_seed_with_tls_is_the_same_run_again(seed: int) -> None:
    """The bytes are others each time; neither they nor their number decide anything."""
    first, again = run_seed(seed, "clustering"), run_seed(seed, "clustering")
    assert first.options.tls
    assert again.digest == first.digest
