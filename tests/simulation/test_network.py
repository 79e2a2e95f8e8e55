"""The simulated network: connections, partitions, cuts, resets, backpressure, lost machines."""

from __future__ import annotations

import asyncio
import random

import pytest

from rocketstream._util.machine import drop_unsent
from rocketstream.testing.sim.network import WINDOW_BYTES
from tests.simulation.net import HERE, PORT, THERE, Net, Recorder


def test_bytes_arrive_in_order_and_names_are_told() -> None:
    net = Net()
    client, server = net.connected(echo=True)
    for number in range(50):
        client.transport.write(b"%03d" % number)
    net.run(1)
    assert server.data == client.data == b"".join(b"%03d" % n for n in range(50))
    assert client.transport.get_extra_info("peername") == (THERE, PORT)
    assert server.transport.get_extra_info("peername")[0] == HERE
    assert client.transport.get_extra_info("cipher") is None


def test_connect_where_nobody_listens_is_refused() -> None:
    net = Net()
    task = net.do(net.here.create_connection(Recorder, THERE, PORT))
    assert isinstance(task.exception(), ConnectionRefusedError)


def test_connect_to_a_machine_that_is_off_waits_for_its_caller_to_give_up() -> None:
    net = Net()
    net.network.hosts[THERE].lose_power()

    async def attempt() -> None:
        async with asyncio.timeout(3):
            await net.here.create_connection(Recorder, THERE, PORT)

    task = net.do(attempt(), 5)
    assert isinstance(task.exception(), TimeoutError)


def test_connect_succeeds_when_the_partition_ends_in_time() -> None:
    net = Net()
    net.listen()
    net.network.block(HERE, THERE)
    task = net.do(net.here.create_connection(lambda: net.client, THERE, PORT), 1.5)
    assert not task.done()
    net.network.unblock(HERE, THERE)
    net.run(5)
    assert task.result()[1] is net.client


def test_close_sends_what_was_written_first() -> None:
    net = Net()
    client, server = net.connected()
    client.transport.write(b"last words")
    client.transport.close()
    client.transport.write(b"too late")
    net.run(1)
    assert server.data == b"last words"
    assert server.lost == client.lost == [None]


def test_partition_holds_bytes_up_and_gives_them_when_it_ends() -> None:
    net = Net()
    client, server = net.connected()
    net.network.block(HERE, THERE)
    client.transport.write(b"hello")
    server.transport.write(b"other way")
    net.run(5)
    assert server.data == b""
    assert client.data == b"other way", "a partition may be one-sided"
    net.network.unblock(HERE, THERE)
    net.run(5)
    assert server.data == b"hello"


@pytest.mark.parametrize("drops", [False, True])
def test_what_a_partition_holds_up_comes_after_the_end_unless_it_is_dropped(drops: bool) -> None:
    """As the kernel does, which sends on what a closed socket has left."""
    net = Net()
    client, server = net.connected()
    net.network.block(HERE, THERE)
    client.transport.write(b"stale")
    net.run(1)
    if drops:
        drop_unsent(client.transport.get_extra_info("socket"))
    client.transport.abort()
    net.network.unblock(HERE, THERE)
    net.run(5)
    assert client.lost == [None]
    assert server.data == (b"" if drops else b"stale")
    assert server.lost == ([] if drops else [None]), "the reset is lost as well"


def test_a_reset_reaches_a_peer_there_is_a_way_to() -> None:
    net = Net()
    client, server = net.connected()
    drop_unsent(client.transport.get_extra_info("socket"))
    client.transport.abort()
    net.run(1)
    (error,) = server.lost
    assert isinstance(error, ConnectionResetError)


def test_partition_that_lasts_ends_the_connection_of_the_one_who_sends() -> None:
    net = Net(give_up_s=20.0)
    client, server = net.connected()
    net.network.block(HERE, THERE)
    client.transport.write(b"hello")
    net.run(30)
    assert [type(error) for error in client.lost] == [TimeoutError]
    assert server.lost == [], "the silent side learns nothing"


def test_cut_lets_some_bytes_through_and_resets_both_sides() -> None:
    net = Net()
    client, server = net.connected()
    net.network.connections()[0].cut_after(4)
    client.transport.write(b"0123456789")
    net.run(1)
    assert server.data == b"0123"
    for side in (client, server):
        assert [type(error) for error in side.lost] == [ConnectionResetError]


def test_once_faults_are_over_nothing_is_cut_any_more() -> None:
    net = Net()
    client, server = net.connected()
    net.network.connections()[0].cut_after(4)
    net.network.heal()
    client.transport.write(b"0123456789")
    net.run(1)
    assert server.data == b"0123456789"


@pytest.mark.parametrize("blocked", [False, True])
def test_nothing_comes_from_behind_a_cut(blocked: bool) -> None:
    net = Net()
    client, server = net.connected()
    net.network.connections()[0].cut_after(4)
    if blocked:
        net.network.block(HERE, THERE)  # then all of it comes in one instant
    for _ in range(20):
        client.transport.write(b"0123456789")
    net.run(1)
    net.network.unblock(HERE, THERE)
    net.run(5)
    assert server.data == b"0123"
    for side in (client, server):
        assert [type(error) for error in side.lost] == [ConnectionResetError]


@pytest.mark.parametrize("met_the_block", [False, True])
def test_nothing_comes_from_behind_what_a_lost_machine_cannot_send_again(
    met_the_block: bool,
) -> None:
    net = Net()
    client, server = net.connected()
    net.network.settings.latency_s = 0.5, 0.5
    net.network.block(HERE, THERE)
    client.transport.write(b"first")
    net.run(0.4)
    client.transport.write(b"second")
    if met_the_block:
        net.run(0.2)
    net.here.die()
    net.network.hosts[HERE].lose_power()
    if not met_the_block:
        net.run(0.2)
    net.network.unblock(HERE, THERE)
    net.run(5)
    assert server.data == b""


def test_latency_that_changes_does_not_change_the_order() -> None:
    net = Net()
    net.listen()
    net.do(net.here.create_connection(lambda: net.client, THERE, PORT), 0.01)
    net.network.slow_down(HERE, THERE, 3.0)
    chance = random.Random(1)
    for number in range(200):
        net.client.transport.write(b"%03d" % number)
        net.run(chance.random() * 0.005)
    net.run(5)
    assert net.servers[0].data == b"".join(b"%03d" % number for number in range(200))


def test_split_writes_arrive_in_pieces() -> None:
    net = Net(split_share=1.0)
    client, server = net.connected()
    client.transport.write(b"0123456789")
    net.run(1)
    assert (server.data, server.pieces) == (b"0123456789", 2)


def test_stalled_segment_holds_up_those_behind_it() -> None:
    net = Net()
    client, server = net.connected()
    net.network.connections()[0].stall(2.0)
    client.transport.write(b"hello")
    net.run(1)
    assert server.data == b""
    net.run(2)
    assert server.data == b"hello"


def test_a_connection_gone_silent_delivers_nothing_and_tells_nobody() -> None:
    """As long as it is written to: the sender's kernel sees every byte taken."""
    net = Net(give_up_s=1.0)
    client, server = net.connected()
    stream = next(s for s in net.network.connections() if s.target.host.address == THERE)
    client.transport.write(b"before")
    net.run(1)
    stream.silence()
    for _ in range(4):
        client.transport.write(bytes(WINDOW_BYTES))
        net.run(2)
    assert client.transport.get_write_buffer_size() == 0
    server.transport.write(b"the other way")
    net.run(2)
    client.transport.close()
    net.run(2)
    assert (server.data, server.lost) == (b"before", [])
    assert client.data == b"the other way"


def test_killed_process_closes_its_connections() -> None:
    net = Net()
    client, server = net.connected()
    server.transport.write(b"sent before")
    net.there.die()
    net.network.hosts[THERE].kill_process()
    net.run(1)
    assert client.data == b"sent before"
    assert client.lost == [None]
    assert server.lost == [], "the dead are told nothing"


def test_lost_machine_is_silent_until_it_is_back_and_refuses() -> None:
    net = Net()
    client, _ = net.connected()
    net.there.die()
    net.network.hosts[THERE].lose_power()
    client.transport.write(b"anybody there?")
    net.run(20)
    assert client.lost == []
    net.network.hosts[THERE].boot()
    net.run(5)
    assert [type(error) for error in client.lost] == [ConnectionResetError]


def test_lost_machine_refuses_even_if_its_first_refusal_is_lost() -> None:
    net = Net()
    client, _ = net.connected()
    net.there.die()
    net.network.hosts[THERE].lose_power()
    net.network.hosts[THERE].boot()
    net.network.block(THERE, HERE)
    client.transport.write(b"anybody there?")
    net.run(5)
    assert client.lost == []
    net.network.unblock(THERE, HERE)
    net.run(5)
    assert [type(error) for error in client.lost] == [ConnectionResetError]


def test_reader_that_does_not_read_is_felt_by_the_writer() -> None:
    net = Net()
    client, server = net.connected()
    server.transport.pause_reading()
    net.run(1)
    client.transport.set_write_buffer_limits(high=1000)
    client.transport.write(bytes(WINDOW_BYTES))
    assert client.paused == 0
    client.transport.write(bytes(2000))
    assert client.paused == 1
    assert client.transport.get_write_buffer_size() == 2000
    net.run(1)
    assert (client.resumed, server.data) == (0, b"")
    server.transport.resume_reading()
    net.run(1)
    assert (client.resumed, len(server.data)) == (1, WINDOW_BYTES + 2000)


def test_port_in_use_is_refused_and_free_after_close() -> None:
    net = Net()
    net.listen()

    async def again() -> None:
        with pytest.raises(OSError, match="in use"):
            await net.there.create_server(Recorder, THERE, PORT)

    net.there.create_task(again())
    net.run(1)
    net.network.hosts[THERE].listeners[PORT].close()
    net.listen()
