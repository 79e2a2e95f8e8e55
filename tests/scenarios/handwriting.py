"""A process that writes a file of accounts by hand, rightly and wrongly, and uses its account.

Law: what cannot be used changes nothing; what can counts from the broker's next look on, for
requests and for every message that is stored, wherever it waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from functools import partial
from typing import Any, NamedTuple

from rocketstream import aio
from rocketstream.errors import AccessDeniedError, BrokerError
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.headers import Header, PullMessageRequestHeader, ViewMessageRequestHeader
from rocketstream.server.broker.broker import ACL_INTERVAL_S
from rocketstream.testing.sim.cluster import ACCOUNTS_FILE, SimBroker
from rocketstream.testing.sim.world import Node, World
from tests.scenarios.administering import GUARDED, SETTLES_S
from tests.scenarios.auditing import message_fields
from tests.scenarios.blunders import Blunder
from tests.scenarios.operating import Clerk

FOLDER = ACCOUNTS_FILE.parent / "acl"
KEY, SECRET, GROUP = "member-one", "12345678", "members"


class Form(NamedTuple):
    """A text of the file, and what follows from it; nothing does where ``shown`` is None.

    Attributes:
        text: the file.
        shown: what the broker shows of the account besides its keys.
        sends: whether the member may send to the guarded topic.
        reads: whether it may read that topic.
        retries: whether it may see a message of the topic that waits for its group.
        dead: whether it may see one that its group gave up.
    """

    text: str
    shown: dict[str, Any] | None = None
    sends: bool = False
    reads: bool = False
    retries: bool = False
    dead: bool = False


def _with(lines: str, more: str = "") -> str:
    start = f"accounts:\n- accessKey: {KEY}\n  secretKey: {SECRET}\n"
    return f"{start}{''.join(f'  {line}{chr(10)}' for line in lines.splitlines())}{more}"


_PLAIN = {"admin": False}
RIGHT = (
    Form(_with("defaultTopicPerm: PUB"), _PLAIN | {"defaultTopicPerm": "PUB"}, sends=True),
    Form(
        _with(f"topicPerms: [{GUARDED}=SUB]\ngroupPerms: [{GROUP}=SUB]\nadmin: 'False '"),
        _PLAIN | {"topicPerms": [f"{GUARDED}=SUB"], "groupPerms": [f"{GROUP}=SUB"]},
        reads=True, retries=True,
    ),
    Form(
        _with("defaultTopicPerm: SUB\ndefaultGroupPerm: SUB"),
        _PLAIN | {"defaultTopicPerm": "SUB", "defaultGroupPerm": "SUB"},
        reads=True, retries=True, dead=True,
    ),
    Form(
        _with(f"defaultTopicPerm: PUB|SUB\ngroupPerms: ['{GROUP}=DENY']"),
        _PLAIN | {"defaultTopicPerm": "PUB|SUB", "groupPerms": [f"{GROUP}=DENY"]}, sends=True,
    ),
    Form(
        _with(f"topicPerms: ['%DLQ%{GROUP}=SUB']"),
        _PLAIN | {"topicPerms": [f"%DLQ%{GROUP}=SUB"]}, dead=True,
    ),
    Form(
        _with("defaultTopicPerm: ALL\nnick: one", "whatever: 1\n"),
        _PLAIN | {"defaultTopicPerm": "ALL"},
    ),
    Form(
        _with("defaultTopicPerm: PUB", f"- {{accessKey: {KEY}, secretKey: another-one}}\n"),
        _PLAIN | {"defaultTopicPerm": "PUB"}, sends=True,
    ),
    Form(
        _with("admin: true", "dataVersion:\n- {counter: 3, timestamp: 4}\n"), {"admin": True},
        sends=True, reads=True, retries=True, dead=True,
    ),
)  # fmt: skip
WRONG = tuple(
    map(
        Form,
        (
            "", "accounts: 5", "accounts: [one]", "accounts: [{1: 2}]", "[1, 2]", "accounts: [",
            "accounts: [{accessKey: short, secretKey: 12345678}]", "\0",
            "accounts: [{accessKey: member-one}]", "accounts: [{secretKey: 12345678}]",
            "accounts: [{accessKey: member-one, secretKey: 1.5}]",
            "accounts: [{accessKey: 2020-02-02, secretKey: 12345678}]",
            _with("admin: maybe"), _with("topicPerms: [a]"), _with("topicPerms: [a=PUB=SUB]"),
            _with("groupPerms: [null]"), _with("groupPerms: members=SUB"),
            _with("whiteRemoteAddress: 10.0.0.256"),
            _with("admin: true", "dataVersion: [{counter: many}]\n"),
        ),
    )
)  # fmt: skip


class Scribe(Clerk):
    """A process that writes the file on the brokers' disks when all is calm.

    Args:
        world: the world it lives in.
    """

    _member: aio.Producer

    def __init__(self, world: World) -> None:
        super().__init__(world, "scribe", 2_000.0)

    async def _main(self, node: Node) -> None:
        name = f"member-{node.incarnation}"
        keys = {"access_key": KEY, "secret_key": SECRET}
        self._member = aio.Producer("writers", **node.client(instance_name=name, **keys))
        await self._member.start()
        await super()._main(node)

    async def _act(self, chance: random.Random) -> None:
        """Ask as somebody whose account is not there yet."""
        broker = self._broker(chance)
        with contextlib.suppress(AccessDeniedError):
            await self._as_member(broker, RequestCode.SEND_MESSAGE, message_fields(GUARDED), b"x")
            self._world.fail(f"{broker.name} lets somebody in without an account")

    async def _end(self, chance: random.Random) -> None:
        await asyncio.sleep(SETTLES_S)
        for broker in self._world.cluster.brokers:
            places: dict[str, int] = {}
            await self._insist(partial(self._store, broker, places))
            current = Form("", {})
            for form in chance.sample([*RIGHT, *WRONG], len(RIGHT) + len(WRONG)):
                self._write(broker, form.text)
                await asyncio.sleep(ACL_INTERVAL_S + 0.2)
                if form.shown is not None:
                    current = form
                if current.text:
                    await self._insist(partial(self._counts, broker, current, form, places))
            for name in ("members.yml", "others.yml"):
                broker.node.files.unlink(FOLDER / name)
            await asyncio.sleep(ACL_INTERVAL_S + 0.2)
            await self._insist(partial(self._is_gone, broker))

    def _write(self, broker: SimBroker, text: str) -> None:
        """Replace the file as an editor does."""
        files, path = broker.node.files, FOLDER / "members.yml"
        files.make_directory(FOLDER)
        files.write_bytes(path.with_suffix(".new"), text.encode())
        files.replace(path.with_suffix(".new"), path)
        # Another file, which comes later in the order of names, has the account too: the first
        # file counts.
        files.write_bytes(FOLDER / "others.yml", _with("admin: true").encode())

    async def _store(self, broker: SimBroker, places: dict[str, int]) -> None:
        """Have a message of the topic stored in each topic where one may wait."""
        given = {"properties": f"RETRY_TOPIC\x01{GUARDED}\x02"}
        retry = message_fields(f"%RETRY%{GROUP}") | given | {"maxReconsumeTimes": "3"}
        delayed = {"properties": "DELAY\x014\x02"}
        for name, fields in (
            ("itself", message_fields(GUARDED)),
            ("delayed", message_fields(GUARDED) | delayed),
            ("retries", retry),
            ("dead", retry | {"reconsumeTimes": "4"}),
        ):
            answer = await self._request(broker, Blunder(RequestCode.SEND_MESSAGE, fields, b"x"))
            places[name] = int((answer.ext_fields or {})["msgId"][-16:], 16)

    # --- what counts ------------------------------------------------------------------------------

    async def _counts(
        self, broker: SimBroker, form: Form, written: Form, places: dict[str, int]
    ) -> None:
        shown = await self._shown(broker)
        wanted = {"accessKey": KEY, "secretKey": SECRET} | (form.shown or {})
        if shown != wanted:
            self._world.fail(f"{broker.name} shows {shown}, not {wanted}, after {written.text!r}")
        is_admin = form.shown == {"admin": True}
        pull = PullMessageRequestHeader(GROUP, GUARDED, 0, 0, 1, 4, 0, 0, 0, "*", "TAG")
        own = PullMessageRequestHeader(
            GROUP, "SCHEDULE_TOPIC_XXXX", 0, 0, 1, 4, 0, 0, 0, "*", "TAG"
        )
        sent = message_fields(GUARDED)
        check = partial(self._may, broker, form)
        await check("send", form.sends, RequestCode.SEND_MESSAGE, sent, b"x")
        await check("read", form.reads, RequestCode.PULL_MESSAGE, pull)
        await check("read the broker's own", is_admin, RequestCode.PULL_MESSAGE, own)
        await check("administer", is_admin, RequestCode.CLEAN_UNUSED_TOPIC, {})
        for name, may in (
            ("itself", form.sends or form.reads), ("delayed", form.sends or form.reads),
            ("retries", form.retries), ("dead", form.dead),
        ):  # fmt: skip
            if name in places:  # a broker that lost its state may have taken none
                view = ViewMessageRequestHeader(places[name])
                await check(f"see what is {name}", may, RequestCode.VIEW_MESSAGE_BY_ID, view)

    async def _shown(self, broker: SimBroker) -> dict[str, Any] | None:
        answer = await self._ask(broker, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
        accounts = json.loads(bytes(answer.body))["plainAccessConfigs"]
        return next((each for each in accounts if each["accessKey"] == KEY), None)

    async def _is_gone(self, broker: SimBroker) -> None:
        shown = await self._shown(broker)
        if shown is not None:
            self._world.fail(f"{broker.name} shows {shown}, and its file is gone")

    async def _may(
        self,
        broker: SimBroker,
        form: Form,
        what: str,
        may: bool,
        code: int,
        asked: Header | dict[str, str],
        body: bytes = b"",
    ) -> None:
        try:
            await self._as_member(broker, code, asked, body)
        except AccessDeniedError as error:
            if may:
                self._world.fail(f"the member may {what} by {form.text!r}, and cannot: {error}")
        else:
            if not may:
                self._world.fail(f"the member may not {what} by {form.text!r}, and can")

    async def _as_member(
        self, broker: SimBroker, code: int, asked: Header | dict[str, str], body: bytes
    ) -> None:
        """Ask as the member; that nothing is found is an answer as well."""
        ext = asked.to_ext() if isinstance(asked, Header) else asked
        try:
            api = self._member._admin()._instance.api
            await self._request(broker, Blunder(code, ext, body), api)
        except BrokerError as error:
            if error.code not in _FOUND:
                raise


_FOUND = (19, 20, 21)
"""Codes of pulls that were let in, and found nothing."""
