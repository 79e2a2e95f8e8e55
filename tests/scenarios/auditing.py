"""People in a simulated run who ask for figures, and who ask for what cannot be.

Law: figures agree with each other whatever happens meanwhile; what is refused leaves nothing, and
who asked wrongly is served as before.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from rocketstream.errors import BrokerError, RocketMQError
from rocketstream.protocol.bodies import (
    BrokerStatsData,
    CheckClientRequestBody,
    ConsumerOffsetTable,
    ConsumeStats,
    ConsumeStatsList,
    GroupList,
    KVTable,
    ProducerTableInfo,
    QueryConsumeTimeSpanBody,
    QueryCorrectionOffsetBody,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicStatsTable,
)
from rocketstream.protocol.codes import MessageSysFlag, Perm, RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    CloneGroupOffsetRequestHeader,
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    GetBrokerConsumeStatsRequestHeader,
    GetConsumeStatsRequestHeader,
    GetEarliestMsgStoretimeRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
    Header,
    QueryConsumeQueueRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryCorrectionOffsetRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    SearchOffsetRequestHeader,
    ViewBrokerStatsDataRequestHeader,
    ViewMessageRequestHeader,
)
from rocketstream.protocol.message_ext import decode_messages
from rocketstream.protocol.properties import decode_properties
from rocketstream.protocol.record import encode_batch
from rocketstream.testing.sim.cluster import SimBroker, SimNameServer
from rocketstream.testing.sim.world import START_MS, World
from tests.scenarios.administering import CLUSTER, SETTLES_S, Expected
from tests.scenarios.blunders import CLUMSY, Blunder, blunders, name_server_blunders
from tests.scenarios.operating import Clerk

AUDITED = ("audited-one", "audited-two")
"""Groups without members."""
NO_OFFSET = 2**63 - 1
ODD = "Odd"
"""The topic of messages that are right, though unusual."""
MINUTE_S = 61.0
"""By then a broker has counted a whole minute."""
PROBLEM_CHARS_MAX = 1_000


class Auditor(Clerk):
    """A process that asks brokers for figures, and changes groups and settings.

    Args:
        world: the world it lives in.
        topic: the topic of the groups.
        groups: groups that have members.
    """

    def __init__(self, world: World, topic: str, groups: Sequence[str]) -> None:
        super().__init__(world, "auditor", 500.0)
        self._topic, self._groups = topic, groups
        self._expected = Expected(world, self.node.kept)
        self._deeds: list[Callable[[SimBroker, random.Random], Awaitable[None]]] = [
            self._runtime, self._statistics, self._topic_stats, self._consume_stats,
            self._broker_stats, self._time_spans, self._correction, self._clone, self._entries,
            self._producers, self._upkeep, self._configs, self._positions, self._make_group,
            self._make_group, self._drop_group, self._read_groups, self._set, self._read_settings,
        ]  # fmt: skip

    async def _act(self, chance: random.Random) -> None:
        await chance.choice(self._deeds)(self._broker(chance), chance)

    async def _end(self, chance: random.Random) -> None:
        await asyncio.sleep(SETTLES_S)
        for broker in self._world.cluster.brokers:
            for deed in self._deeds:
                await self._insist(partial(deed, broker, chance))
            for group in AUDITED:
                await self._insist(partial(self._drop, broker, group))
            await self._insist(partial(self._none_is_left, broker))
            await self._insist(partial(self._obeys, broker))
            await self._insist(partial(self._stores, broker))
        await asyncio.sleep(MINUTE_S)
        for broker in self._world.cluster.brokers:
            await self._insist(partial(self._runtime, broker, chance))

    def _wrong(self, broker: SimBroker, text: object) -> None:
        if not self._world.may_lose:
            self._world.fail(f"{broker.name} says {text!r:.{PROBLEM_CHARS_MAX}}")

    # --- figures ----------------------------------------------------------------------------------

    async def _runtime(self, broker: SimBroker, _: random.Random) -> None:
        answer = await self._ask(broker, RequestCode.GET_BROKER_RUNTIME_INFO)
        table = KVTable.decode(bytes(answer.body)).table
        puts, gets = int(table["msgPutTotalTodayNow"]), int(table["msgGetTotalTodayNow"])
        begin, end = int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
        least, most = float(table["putLatency99"]), float(table["putLatency999"])
        behind = int(table["dispatchBehindBytes"])
        delays = [text.split(",") for name, text in table.items() if "scheduleMessageOff" in name]
        is_right = begin <= end and puts >= 0 and gets >= 0 and behind >= 0
        is_right &= 0 <= least <= most and self._is_divided(table, most)
        if not is_right or any(int(at) > int(high) for at, high in delays):
            self._wrong(broker, table)

    def _is_divided(self, table: Mapping[str, str], most_ms: float) -> bool:
        """Tell whether the last minute's puts by duration agree with the rest."""
        if table["putMessageDistributeTime"] == "null":
            return (
                most_ms == 0
                and self._world.now_ms < 1_000 * MINUTE_S + self._world.options.fault_ms
            )
        parts = [part.rpartition(":") for part in table["putMessageDistributeTime"].split()]
        counts = [int(count) for _, _, count in parts]
        longest = max([at for at, count in enumerate(counts) if count], default=None)
        # No put takes any time here: all are in the first part.
        in_time = most_ms == 0 if longest is None else longest == 0 and 0 < most_ms <= 1
        return in_time and len(counts) == 13 and sum(counts) <= int(table["msgPutTotalTodayNow"])

    async def _statistics(self, broker: SimBroker, chance: random.Random) -> None:
        group = chance.choice(self._groups)
        name, key = chance.choice([
            ("BROKER_PUT_NUMS", CLUSTER), ("BROKER_GET_NUMS", CLUSTER),
            ("TOPIC_PUT_NUMS", self._topic), ("TOPIC_PUT_SIZE", self._topic),
            ("GROUP_GET_NUMS", f"{self._topic}@{group}"),
            ("GROUP_GET_SIZE", f"{self._topic}@{group}"),
            ("GROUP_GET_LATENCY", f"{self._topic}@{group}"),
            ("GROUP_GET_LATENCY", f"0@{self._topic}@{group}"),
            ("SNDBCK_PUT_NUMS", f"{self._topic}@{group}"),
            ("QUEUE_PUT_NUMS", f"{self._topic}@0"), ("QUEUE_GET_SIZE", f"{self._topic}@0@{group}"),
        ])  # fmt: skip
        header = ViewBrokerStatsDataRequestHeader(name, key)
        try:
            answer = await self._ask(broker, RequestCode.VIEW_BROKER_STATS_DATA, header)
        except BrokerError as error:
            if "not exist" not in error.remark:
                raise
            return
        data = BrokerStatsData.decode(bytes(answer.body))
        windows = (data.stats_minute, data.stats_hour, data.stats_day)
        if any(min(window.sum, window.tps, window.avgpt) < 0 for window in windows):
            self._wrong(broker, (name, key, data))

    async def _topic_stats(self, broker: SimBroker, _: random.Random) -> None:
        header = GetTopicStatsInfoRequestHeader(self._topic)
        answer = await self._ask(broker, RequestCode.GET_TOPIC_STATS_INFO, header)
        table = TopicStatsTable.decode(bytes(answer.body)).offset_table
        if any(not 0 <= each.min_offset <= each.max_offset for each in table.values()):
            self._wrong(broker, table)
        by = QueryTopicConsumeByWhoRequestHeader(self._topic)
        answer = await self._ask(broker, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, by)
        unknown = GroupList.decode(bytes(answer.body)).group_list - {*self._groups, *AUDITED}
        if unknown:
            self._wrong(broker, f"groups nobody made: {unknown}")

    async def _consume_stats(self, broker: SimBroker, chance: random.Random) -> None:
        topic = chance.choice((None, self._topic))
        for group in self._groups:
            header = GetConsumeStatsRequestHeader(group, topic)
            answer = await self._ask(broker, RequestCode.GET_CONSUME_STATS, header)
            self._check_stats(broker, ConsumeStats.decode(bytes(answer.body)))

    def _check_stats(self, broker: SimBroker, stats: ConsumeStats) -> None:
        for queue, at in stats.offset_table.items():
            if not 0 <= at.consumer_offset <= at.broker_offset or stats.consume_tps < 0:
                self._wrong(broker, (queue, at, stats.consume_tps))

    async def _broker_stats(self, broker: SimBroker, _: random.Random) -> None:
        header = GetBrokerConsumeStatsRequestHeader()
        answer = await self._ask(broker, RequestCode.GET_BROKER_CONSUME_STATS, header)
        found = ConsumeStatsList.decode(bytes(answer.body))
        lag = 0
        for table in found.consume_stats_list:
            for stats in (each for several in table.values() for each in several):
                self._check_stats(broker, stats)
                offsets = stats.offset_table.values()
                lag += sum(at.broker_offset - at.consumer_offset for at in offsets)
        if found.total_diff != lag:
            self._wrong(broker, f"a lag of {found.total_diff}, and of {lag} in all queues")

    async def _time_spans(self, broker: SimBroker, chance: random.Random) -> None:
        header = QueryConsumeTimeSpanRequestHeader(self._topic, chance.choice(self._groups))
        answer = await self._ask(broker, RequestCode.QUERY_CONSUME_TIME_SPAN, header)
        for span in QueryConsumeTimeSpanBody.decode(bytes(answer.body)).consume_time_span_set:
            if span.delay_time < 0 or min(span.min_time_stamp, span.max_time_stamp) < -1:
                self._wrong(broker, span)

    async def _correction(self, broker: SimBroker, chance: random.Random) -> None:
        group, out = chance.choice(self._groups), chance.choice((None, "", *AUDITED))
        header = QueryCorrectionOffsetRequestHeader(group, self._topic, out)
        answer = await self._ask(broker, RequestCode.QUERY_CORRECTION_OFFSET, header)
        found = QueryCorrectionOffsetBody.decode(bytes(answer.body)).correction_offsets
        if any(at < 0 for at in found.values()):
            self._wrong(broker, found)

    async def _positions(self, broker: SimBroker, chance: random.Random) -> None:
        """Ask for the ends of a queue and for offsets by time: later is never lower."""
        for queue in broker.queues(self._topic):
            place = queue.topic, queue.queue_id
            low = await self._number(
                broker, RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader(*place)
            )
            at = START_MS + int(chance.random() * self._world.now_ms)
            times = (0, at, at + 500, 2**62)
            found = [low]
            for ms in times:
                header = SearchOffsetRequestHeader(*place, ms)
                found.append(
                    await self._number(broker, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
                )
            end = GetMaxOffsetRequestHeader(*place)
            found.append(await self._number(broker, RequestCode.GET_MAX_OFFSET, end))
            if "clock jump" not in self._world.options.faults and found != sorted(found):
                self._wrong(broker, f"offsets of {queue} at {times}: {found}")
            first = GetEarliestMsgStoretimeRequestHeader(*place)
            await self._ask(broker, RequestCode.GET_EARLIEST_MSG_STORETIME, first)

    async def _number(self, broker: SimBroker, code: int, header: Header) -> int:
        answer = await self._ask(broker, code, header)
        return int((answer.ext_fields or {})["offset"])

    # --- lists ------------------------------------------------------------------------------------

    async def _entries(self, broker: SimBroker, chance: random.Random) -> None:
        """Ask for a part of a queue's index: places in the log grow."""
        group = chance.choice((None, *self._groups, *AUDITED))
        count = chance.choice((0, 1, 20_000))
        header = QueryConsumeQueueRequestHeader(self._topic, 0, chance.randint(0, 9), count, group)
        found = await self._queue_index(broker, header)
        if found is None:
            return
        places = [entry.physic_offset for entry in found.queue_data]
        if found.min_queue_index > found.max_queue_index or places != sorted(set(places)):
            self._wrong(broker, found)

    async def _producers(self, broker: SimBroker, _: random.Random) -> None:
        answer = await self._ask(broker, RequestCode.GET_ALL_PRODUCER_INFO)
        ProducerTableInfo.decode(bytes(answer.body))

    async def _upkeep(self, broker: SimBroker, chance: random.Random) -> None:
        """Have a broker remove what it needs no more: that is nothing here."""
        code = chance.choice((
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.CLEAN_UNUSED_TOPIC,
            RequestCode.DELETE_EXPIRED_COMMITLOG,
        ))  # fmt: skip
        await self._ask(broker, code)

    async def _configs(self, broker: SimBroker, _: random.Random) -> None:
        answer = await self._ask(broker, RequestCode.GET_ALL_TOPIC_CONFIG)
        table = TopicConfigSerializeWrapper.decode(bytes(answer.body)).topic_config_table
        header = GetTopicConfigRequestHeader(self._topic)
        answer = await self._ask(broker, RequestCode.GET_TOPIC_CONFIG, header)
        one = TopicConfig.decode(bytes(answer.body))
        listed = table.get(self._topic)
        if listed is None or listed.read_queue_nums > one.read_queue_nums:
            self._wrong(broker, (listed, one))
        await self._ask(broker, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        await self._ask(broker, RequestCode.GET_ALL_DELAY_OFFSET)

    # --- groups and settings ----------------------------------------------------------------------

    async def _make_group(self, broker: SimBroker, chance: random.Random) -> None:
        group, retries = chance.choice(AUDITED), chance.randint(0, 100)
        config = SubscriptionGroupConfig(group, retry_max_times=retries)
        with self._expected.changing((broker.name, group), retries):
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            await self._ask(broker, code, body=config.encode())

    async def _drop_group(self, broker: SimBroker, chance: random.Random) -> None:
        await self._drop(broker, chance.choice(AUDITED))

    async def _drop(self, broker: SimBroker, group: str) -> None:
        header = DeleteSubscriptionGroupRequestHeader(group, remove_offset=True)
        with self._expected.changing((broker.name, group), None):
            await self._ask(broker, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    async def _read_groups(self, broker: SimBroker, _: random.Random | None = None) -> None:
        answer = await self._ask(broker, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        table = SubscriptionGroupWrapper.decode(bytes(answer.body)).subscription_group_table
        for group in AUDITED:
            seen = table[group].retry_max_times if group in table else None
            self._expected.check((broker.name, group), seen)

    async def _clone(self, broker: SimBroker, chance: random.Random) -> None:
        """Give a group the offsets of another."""
        source, target = chance.choice(self._groups), chance.choice(AUDITED)
        topic = chance.choice((None, "", self._topic))
        header = CloneGroupOffsetRequestHeader(source, target, topic, chance.random() < 0.5)
        await self._ask(broker, RequestCode.CLONE_GROUP_OFFSET, header)

    async def _none_is_left(self, broker: SimBroker) -> None:
        """Raise while a broker shows a group that was deleted, or an offset of it."""
        await self._read_groups(broker)
        answer = await self._ask(broker, RequestCode.GET_ALL_CONSUMER_OFFSET)
        offsets = ConsumerOffsetTable.decode(bytes(answer.body)).offset_table
        left = [key for key in offsets if key.partition("@")[2] in AUDITED]
        if left:
            raise RocketMQError(f"offsets of groups that were deleted: {left}")

    async def _set(self, broker: SimBroker, chance: random.Random) -> None:
        """Change a setting that nothing here depends on."""
        value = str(chance.randint(100, 200))
        with self._expected.changing((broker.name, "transactionCheckMax"), value):
            body = b"! a comment\ntransactionCheckMax = %s\n" % value.encode()
            await self._ask(broker, RequestCode.UPDATE_BROKER_CONFIG, body=body)

    async def _read_settings(self, broker: SimBroker, _: random.Random) -> None:
        answer = await self._ask(broker, RequestCode.GET_BROKER_CONFIG)
        lines = bytes(answer.body).decode().splitlines()
        value = dict(line.split("=", 1) for line in lines)["transactionCheckMax"]
        self._expected.check(
            (broker.name, "transactionCheckMax"), value if int(value) > 99 else None
        )

    # --- what settings do -------------------------------------------------------------------------

    async def _obeys(self, broker: SimBroker) -> None:
        """Switch off what brokers can do: it is refused, and done again once that is undone."""
        self.node.kept["asked"] = self.node.kept.get("asked", 0) + 1
        unknown = f"Unknown-{self.node.kept['asked']}"
        half = {"properties": "TRAN_MSG\x01true\x02PGROUP\x01auditors\x02"}
        condition = SubscriptionData(self._topic, "a > 1", expression_type="SQL92")
        asked = CheckClientRequestBody("auditor", "auditors", condition).encode()
        send, pull = RequestCode.SEND_MESSAGE, RequestCode.PULL_MESSAGE
        await self._is_switched(
            broker, "rejectTransactionMessage=true", 16,
            Blunder(send, message_fields(self._topic) | half, b"x"), is_repeated=False,
        )  # fmt: skip
        anew = Blunder(send, message_fields(unknown), b"x")
        await self._is_switched(broker, "autoCreateTopicEnable=false", 17, anew)
        await self._is_switched(
            broker, "enablePropertyFilter=false", 1,
            Blunder(RequestCode.CHECK_CLIENT_CONFIG, {}, asked),
        )  # fmt: skip
        await self._is_switched(
            broker, "autoCreateSubscriptionGroup=false", 26,
            Blunder(pull, {"consumerGroup": unknown} | _reading(unknown)),
        )  # fmt: skip
        await self._ask(
            broker, RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(unknown)
        )
        await self._drop(broker, unknown)

    async def _stores(self, broker: SimBroker) -> None:
        """Send what is right, though unusual: it is stored where it belongs, as it was sent."""
        make = CreateTopicRequestHeader(ODD, "TBW102", 1, 1, Perm.READ | Perm.WRITE, "MULTI_TAG")
        await self._ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, make)
        send, odd = RequestCode.SEND_MESSAGE, message_fields(ODD)
        retry = message_fields("%RETRY%auditors")
        note = {"properties": "note\x01Gr\u00fc\u00dfe\x02"}
        for fields, place in (
            (odd | note, ODD),
            (odd | {"properties": "DELAY\x01soon\x02"}, ODD),
            (odd | {"properties": "DELAY\x011\x02TIMER_DELAY_SEC\x015\x02"}, "SCHEDULE_TOPIC_XXXX"),
            (odd | {"properties": "TIMER_DELIVER_MS\x011\x02"}, ODD),
            (retry | {"reconsumeTimes": "16"}, "%RETRY%auditors"),
            (retry | {"reconsumeTimes": "17"}, "%DLQ%auditors"),
        ):
            await self._is_stored(broker, Blunder(send, fields, b"x"), place)
        body = encode_batch([(0, b"x", note["properties"].encode()), (0, b"x", b"")])
        letters = zip("abcdefghijkm", (odd | {"batch": "true"}).values(), strict=True)
        batch = Blunder(RequestCode.SEND_BATCH_MESSAGE, dict(letters), body)
        await self._is_stored(broker, batch, ODD, note="Gr\u00fc\u00dfe")
        await self._ask(broker, RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(ODD))
        await self._drop(broker, "auditors")

    async def _is_stored(
        self, broker: SimBroker, sent: Blunder, topic: str, note: str | None = None
    ) -> None:
        """Send a message, and read it where it is stored, its properties too."""
        answer = await self._request(broker, sent)
        first = (answer.ext_fields or {})["msgId"].partition(",")[0]
        view = ViewMessageRequestHeader(int(first[-16:], 16))
        body = (await self._ask(broker, RequestCode.VIEW_MESSAGE_BY_ID, view)).body
        (message,) = decode_messages(bytes(body))
        wanted = {"note": note} if note else decode_properties(sent.ext.get("properties", ""))
        shown = message.properties.items()
        tagged = bool(message.sys_flag & MessageSysFlag.MULTI_TAGS)
        is_odd = sent.ext.get("topic") == ODD
        if message.topic != topic or not wanted.items() <= shown or (is_odd and not tagged):
            self._world.fail(f"{sent} is stored as {message}: {message.properties}")

    async def _is_switched(
        self, broker: SimBroker, off: str, code: int, asked: Blunder, *, is_repeated: bool = True
    ) -> None:
        """Change a setting and ask for what it forbids, and again when it is as it was.

        Args:
            broker: a broker.
            off: the setting that forbids it.
            code: the code it is refused with.
            asked: the request.
            is_repeated: whether it is asked for again.
        """
        await self._switch(broker, off)
        try:
            await self._request(broker, asked)
            self._world.fail(f"{broker.name} does with {off}: {asked}")
        except BrokerError as error:
            if error.code != code:
                self._world.fail(f"{broker.name} answers with {off}: {error}")
        name, _, text = off.partition("=")
        await self._switch(broker, f"{name}={'true' if text == 'false' else 'false'}")
        if is_repeated:
            await self._request(broker, asked)

    async def _switch(self, broker: SimBroker, text: str) -> None:
        await self._ask(broker, RequestCode.UPDATE_BROKER_CONFIG, body=f"{text}\n".encode())


def message_fields(topic: str) -> dict[str, str]:
    """Return the fields of a message that is right."""
    return {
        "producerGroup": "auditors", "topic": topic, "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "1", "queueId": "0", "sysFlag": "0", "bornTimestamp": "1",
        "flag": "0", "properties": "", "reconsumeTimes": "0", "unitMode": "true", "batch": "false",
    }  # fmt: skip


def _reading(topic: str) -> dict[str, str]:
    """Return the fields of a pull that finds the first message of a topic."""
    return {
        "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4",
        "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
        "expressionType": "TAG",
    }  # fmt: skip


class Bungler(Clerk):
    """A process that asks for what cannot be.

    Law: it is told so, with a code and a text; on the same connection right requests are answered.

    Args:
        world: the world it lives in.
        topic: a topic that is there.
    """

    def __init__(self, world: World, topic: str) -> None:
        super().__init__(world, "bungler", 300.0)
        self._topic = topic

    async def _act(self, chance: random.Random) -> None:
        broker = self._broker(chance)
        await self._blunder(broker.address, chance.choice(blunders(self._topic, chance)))

    async def _blunder(self, address: str, blunder: Blunder) -> None:
        """Make a mistake, and then a right request."""
        command = RemotingCommand.request(blunder.code, None, blunder.body)
        command.ext_fields = dict(blunder.ext)
        try:
            answer = await self._invoke(self._api, address, command)
        except BrokerError as error:
            if not error.remark or "internal error" in error.remark:
                self._world.fail(f"{blunder} is refused without a reason: {error}")
        else:
            shown = f"{answer.remark!r} {answer.ext_fields} {bytes(answer.body)[:200]!r}"
            self._world.fail(f"{blunder} is not refused: {shown}")

    async def _is_served(self, broker: SimBroker) -> None:
        header = GetMaxOffsetRequestHeader(self._topic, 0)
        await self._ask(broker, RequestCode.GET_MAX_OFFSET, header)

    async def _end(self, chance: random.Random) -> None:
        """Make every mistake while all is calm: the connection outlasts all of them."""
        await asyncio.sleep(SETTLES_S)
        for broker in self._world.cluster.brokers:
            await self._insist(partial(self._is_served, broker))
            before = self._api.remoting.connected(broker.address)
            for blunder in blunders(self._topic, chance):
                await self._insist(partial(self._blunder, broker.address, blunder))
                await self._insist(partial(self._is_served, broker))
                after = self._api.remoting.connected(broker.address)
                if before is not None and after is not before:
                    self._world.fail(f"{blunder} ended the connection")
                    return
            self._check_nothing_stays(broker)
        for server in self._world.cluster.name_servers:
            for blunder in name_server_blunders(chance):
                await self._insist(partial(self._blunder, server.address, blunder))
            await self._insist(partial(self._is_unknown, server))

    async def _is_unknown(self, server: SimNameServer) -> None:
        """Ask a name server for clusters and topics: the clumsy broker is in none of them."""
        for code in (
            RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        ):  # fmt: skip
            answer = await self._ask(server, code)
            if CLUMSY.encode() in bytes(answer.body):
                self._world.fail(f"{server.address} keeps what it refused: {bytes(answer.body)!r}")

    def _check_nothing_stays(self, broker: SimBroker) -> None:
        controller = broker.running.controller
        names = {*broker.running.store.topics(), *controller.topics.wrapper().topic_config_table}
        names |= set(controller.offsets.snapshot().offset_table)
        left = [name for name in names if CLUMSY in name]
        if left:
            self._world.fail(f"{broker.name} keeps what it refused: {left}")
