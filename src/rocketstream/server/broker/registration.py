"""The broker's registration: name servers learn that it lives and which topics it has.

Law: a change that could not be sent is sent again; one registration is under way at a time.
Upstream: BrokerOuterAPI.registerBrokerAll.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterable

from rocketstream._util.machine import is_loopback
from rocketstream.errors import RocketMQError
from rocketstream.protocol.addresses import format_address, parse_address
from rocketstream.protocol.bodies import RegisterBrokerBody
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    RegisterBrokerRequestHeader,
    UnRegisterBrokerRequestHeader,
)
from rocketstream.protocol.record import body_crc
from rocketstream.protocol.signing import sign
from rocketstream.server.broker.controller import BrokerController
from rocketstream.server.broker.core.acl.accounts import Account
from rocketstream.transport.client import RemotingClient
from rocketstream.transport.connection import Connection
from rocketstream.transport.sharing import Steps

logger: logging.Logger = logging.getLogger("rocketstream.server")

TIMEOUT_MS = 6_000
UNREGISTER_TIMEOUT_MS = 1_000
AGAIN_S = 0.5
"""A name server that a registration did not reach, or whose connection was lost, has forgotten this
broker by then or soon: the registration is repeated after so long, and twice as long each time it
fails."""


class Signing:
    """Signs a broker's requests to name servers whose changes need an account.

    Args:
        controller: the broker's state.
        own: the account the name server in this process knows it by; None takes an admin of the
            broker's accounts, for connections on which others cannot see the signature.
        is_encrypted: whether the connections speak TLS.
    """

    def __init__(
        self, controller: BrokerController, own: Account | None, *, is_encrypted: bool
    ) -> None:
        self._controller = controller
        self._own = own
        self._is_encrypted = is_encrypted

    def __call__(self, address: str, command: RemotingCommand) -> None:
        """Sign a request before it is encoded."""
        account = self._own or self._admin(address)
        if account is not None:
            ext = command.ext_fields or {}
            command.ext_fields = ext | sign(
                ext, command.body, account.access_key, account.secret_key
            )

    def _admin(self, address: str) -> Account | None:
        access, config = self._controller.access, self._controller.config
        is_private = self._is_encrypted or is_loopback(parse_address(address)[0])
        if access is None or not (is_private or config.admin_without_tls):
            return None
        accounts = access.files.rules.accounts.values()
        return next((account for account in accounts if account.is_admin), None)


class NameServerRegistrar:
    """Registers one broker with all its name servers.

    A name server that missed a change gets the whole table next time, and so does one behind a new
    connection: it may have been restarted, and then knows nothing of earlier registrations.
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
        self._again_s = AGAIN_S
        self._sooner: asyncio.TimerHandle | None = None
        self._closed = False

    def announce(self, topics: Iterable[str]) -> asyncio.Future[None]:
        """Register changed topics; the future is done once the registration was sent to each name
        server."""
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
        if self._needs_all:
            self._again_soon()
        else:
            self._again_s = AGAIN_S

    def lost(self, connection: Connection) -> None:
        """Register again soon: the name server forgets a broker with its connection."""
        found = [address for address, told in self._told.items() if told is connection]
        if found and not self._closed:
            self._needs_all.update(found)
            self._again_soon()

    def _again_soon(self) -> None:
        if self._sooner is None and not self._closed:
            self._sooner = self._loop.call_later(self._again_s, self._try_again)
            interval_s = self._controller.config.register_interval_ms / 1000
            self._again_s = min(2 * self._again_s, interval_s)

    def _try_again(self) -> None:
        self._sooner = None
        if self._needs_all:
            self.announce(())

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
        wrapper = self._controller.topics.wrapper(topics)
        if topics is not None:
            # A part has a version of its own. With the table's, a name server that had forgotten
            # this broker meanwhile would take the next whole table for one it knows.
            own = dataclasses.replace(wrapper.data_version, counter=~wrapper.data_version.counter)
            wrapper = dataclasses.replace(wrapper, data_version=own)
        return RegisterBrokerBody(wrapper, [])

    async def _written(self, body: RegisterBrokerBody) -> RemotingCommand:
        """Encode a table in steps: in one step it would hold up all requests for its whole
        length."""
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
        """Unregister from the name servers; one that cannot be reached will notice later."""
        self._closed = True
        for timer in (self._timer, self._sooner):
            if timer:
                timer.cancel()
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
