"""Tells the name servers that this broker lives and which topics it has.

Law: a change that could not be sent is sent again; one registration is under way at a time.
Upstream: BrokerOuterAPI.registerBrokerAll (W 2.7).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from rocketstream.errors import RocketMQError
from rocketstream.protocol.addresses import format_address
from rocketstream.protocol.bodies import RegisterBrokerBody
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    RegisterBrokerRequestHeader,
    UnRegisterBrokerRequestHeader,
)
from rocketstream.protocol.record import body_crc
from rocketstream.server.broker.controller import BrokerController
from rocketstream.transport.aio import Connection, RemotingClient
from rocketstream.transport.sharing import Steps

logger = logging.getLogger("rocketstream.server")

TIMEOUT_MS = 6_000
UNREGISTER_TIMEOUT_MS = 1_000


class NameServerRegistrar:
    """Registers one broker with all its name servers.

    A name server that missed a change gets the whole table next time, since a partial one with the
    newest version would hide the missed change. So does one behind a new connection: it may have
    been restarted, and then knows nothing of earlier registrations.
    """

    def __init__(self, controller: BrokerController, client: RemotingClient) -> None:
        self._controller = controller
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._changed: dict[str, None] = {}  # in the order of the changes
        self._needs_all: set[str] = set(controller.config.namesrv_addrs)
        self._told: dict[str, Connection] = {}
        """The connection over which each name server got the whole table."""
        self._waiting: list[asyncio.Future[None]] = []
        self._running = False
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def announce(self, topics: Iterable[str]) -> asyncio.Future[None]:
        """Register changed topics; the future is done once every name server was told."""
        future: asyncio.Future[None] = self._loop.create_future()
        if self._closed or not self._controller.config.namesrv_addrs:
            future.set_result(None)
            return future
        self._changed.update(dict.fromkeys(topics))
        self._waiting.append(future)
        if not self._running:
            self._running = True
            self._controller.spawn(self._run())
        return future

    async def _run(self) -> None:
        try:
            while self._waiting and not self._closed:
                waiting, self._waiting = self._waiting, []
                changed, self._changed = list(self._changed), {}
                await self._register_all(changed)
                for future in waiting:
                    if not future.done():
                        future.set_result(None)
        finally:
            self._running = False

    async def register(self) -> None:
        """Register everything with every name server now, and from then on repeatedly."""
        self._needs_all.update(self._controller.config.namesrv_addrs)
        await self.announce(())
        self._again_later()

    def _again_later(self) -> None:
        if not self._closed:
            interval_s = self._controller.config.register_interval_ms / 1000
            self._timer = self._loop.call_later(interval_s, self._again)

    def _again(self) -> None:
        self._needs_all.update(self._controller.config.namesrv_addrs)
        self.announce(())
        self._again_later()

    async def _register_all(self, changed: list[str]) -> None:
        # Copied in the step that took the changes: a topic made one step later would give them its
        # version, and the name server would then ignore that topic's own registration.
        bodies = {
            address: None if address in self._needs_all else self._body(changed)
            for address in self._controller.config.namesrv_addrs
            if changed or address in self._needs_all
        }
        self._needs_all.difference_update(bodies)
        await asyncio.gather(*[self._register_one(*item) for item in bodies.items()])

    async def _register_one(self, address: str, body: RegisterBrokerBody | None) -> None:
        """Send the changes; or the whole table, if there are none or they are not enough."""
        try:
            connection = await self._client.connection(address)
            if body is None or self._told.get(address) is not connection:
                self._told.pop(address, None)
                body = self._body(None)
            answer = await connection.request(await self._written(body), TIMEOUT_MS)
        except RocketMQError as error:
            self._needs_all.add(address)
            logger.warning("cannot register with name server %s: %s", address, error)
            return
        if answer.code != ResponseCode.SUCCESS:
            self._needs_all.add(address)
            logger.warning("name server %s refused: %s %s", address, answer.code, answer.remark)
            return
        self._told[address] = connection

    def _body(self, topics: list[str] | None) -> RegisterBrokerBody:
        return RegisterBrokerBody(self._controller.topics.wrapper(topics), [])

    async def _written(self, body: RegisterBrokerBody) -> RemotingCommand:
        """Encode a table in steps: in one step it would hold up everybody for its whole length."""
        written: asyncio.Future[bytes] = self._loop.create_future()

        def steps() -> Steps:
            parts = yield from body.encoding()
            if not written.done():
                written.set_result(b"".join(parts))

        if self._controller.sharing is not None:
            self._controller.sharing.start(steps())
        else:
            for _ in steps():
                pass
        return self._command(await written)

    def _command(self, body: bytes) -> RemotingCommand:
        controller, config = self._controller, self._controller.config
        header = RegisterBrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=controller.address,
            cluster_name=config.cluster_name,
            ha_server_addr=format_address(controller.host, controller.port + 1),
            broker_id=config.broker_id,
            compressed=False,
            body_crc32=body_crc(body),
        )
        return RemotingCommand.request(RequestCode.REGISTER_BROKER, header, body)

    async def close(self) -> None:
        """Unregister from the name servers; one that cannot be reached will notice by itself."""
        self._closed = True
        if self._timer:
            self._timer.cancel()
        controller, config = self._controller, self._controller.config
        header = UnRegisterBrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=controller.address,
            cluster_name=config.cluster_name,
            broker_id=config.broker_id,
        )
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        connected = [a for a in config.namesrv_addrs if self._client.connected(a)]
        for address in connected:
            command = RemotingCommand.request(RequestCode.UNREGISTER_BROKER, header)
            try:
                await self._client.request(address, command, UNREGISTER_TIMEOUT_MS)
            except RocketMQError as error:
                logger.info("cannot unregister from name server %s: %s", address, error)
