"""Planted defects: each a promise broken in one or two places of the product's source.

Law: texts only; a text that is to be replaced stands exactly once in its module. Most are defects
the original had, or this project before it was broken on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass

CLIENT, BROKER, STORE = (
    "rocketstream.client",
    "rocketstream.server.broker",
    "rocketstream.server.store",
)


@dataclass(frozen=True)
class Edit:
    """A text of a module, and what stands there instead."""

    module: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """A planted defect.

    Attributes:
        name: in a word.
        breaks: what it breaks, in one line.
        scenario: the workload that is to find it.
        shows: words one of which is in what is found; other failures do not count.
        edits: where it is planted.
    """

    name: str
    breaks: str
    scenario: str
    shows: tuple[str, ...]
    edits: tuple[Edit, ...]

    def is_shown_by(self, failure: str) -> bool:
        """Tell whether a failure is one this defect makes."""
        return any(word in failure for word in self.shows)


def _mutant(
    name: str, breaks: str, scenario: str, shows: str, *edits: tuple[str, str, str]
) -> Mutant:
    words = tuple(shows.split(", "))
    return Mutant(name, breaks, scenario, words, tuple(Edit(*edit) for edit in edits))


LOST = "lost, misplaced, not consumed, does not hold"
AHEAD = "committed ahead, lost, not consumed, committed"
ORDER = "owned twice, reordered, went backwards"


MUTANTS = (
    _mutant(
        "commit-the-largest",
        "the offset to commit is the largest unfinished one, not the smallest",
        "clustering",
        AHEAD,
        (f"{CLIENT}.consumer.process_queue", "        return order[0]\n\n    def held_by",
         "        return order[-1]\n\n    def held_by"),
    ),
    _mutant(
        "lost-send-back-counts",
        "a failed message counts as done although its send-back failed",
        "clustering",
        LOST,
        (f"{CLIENT}.consumer.send_back",
         "        except SendError:\n            if not (is_expired",
         "        except SendError:\n            queue.finish(message)\n            return True\n"
         "            if not (is_expired"),
    ),
    _mutant(
        "unsure-means-end",
        "an offset query that fails means the end of the queue",
        "clustering",
        AHEAD,
        (f"{CLIENT}.consumer.assignment",
         "        stored = await store.read_store(mq)\n",
         "        from asyncio import sleep\n"
         "        from rocketstream.errors import RocketMQError\n"
         "        try:\n"
         "            stored = await store.read_store(mq)\n"
         "        except RocketMQError:\n"
         "            address = self._instance.routes.masters[mq.broker_name]\n"
         "            while True:\n"
         "                try:\n"
         "                    return await self._instance.api.max_offset(address, mq)\n"
         "                except RocketMQError:\n"
         "                    await sleep(0.1)\n"),
    ),
    _mutant(
        "one-too-far",
        "a queue that is worked off is committed one message too far",
        "clustering",
        AHEAD,
        (f"{CLIENT}.consumer.process_queue", "            return max(self.queue_offset_max + 1, self.passed_to)",
         "            return max(self.queue_offset_max + 2, self.passed_to)"),
    ),
    _mutant(
        "confirmed-for-ever",
        "what a broker confirmed is never sent again nor asked about, though it died before writing it",
        "pulling",
        "committed",
        (f"{CLIENT}.consumer.offsets.store",
         "            {name for name, confirmed in self._addresses.items() if confirmed == address}\n",
         "            set()\n"),
        (f"{CLIENT}.consumer.offsets.store",
         "        await asyncio.gather(*map(self._check, due[:OFFSET_CHECKS_MAX]))\n",
         "        del due\n"),
    ),
    _mutant(
        "lite-commits-the-cache",
        "a lite pull consumer commits what it has cached, not what was polled",
        "pulling",
        AHEAD,
        (f"{CLIENT}.consumer.lite.queues", "            queue.acked = queue.position\n        self._handed = ()",
         "            queue.acked = queue.pull_offset\n        self._handed = ()"),
    ),
    _mutant(
        "last-queues-nobodys",
        "the queues left over by an even division belong to nobody",
        "clustering",
        "owned by, not consumed",
        (f"{CLIENT}.consumer.allocate", "        return mq_all[start : start + share + (index < extra)]",
         "        return mq_all[start : start + share]"),
    ),
    _mutant(
        "suspend-means-done",
        "an orderly batch that asks for a pause counts as consumed",
        "orderly",
        AHEAD,
        (f"{CLIENT}.consumer.listener", "        return Step.COMMIT\n    return Step.AGAIN",
         "        return Step.COMMIT\n    return Step.COMMIT"),
    ),
    _mutant(
        "lock-for-everybody",
        "the broker grants a queue's lock to whoever asks",
        "orderly",
        ORDER,
        (f"{BROKER}.core.locks", "            elif lock.client_id != client_id and not self._is_expired(lock, now_ms):",
         "            elif self._count < 0:"),
    ),
    _mutant(
        "locks-forgotten",
        "a restarted broker grants every lock anew, and members trust their leases",
        "orderly",
        ORDER,
        (f"{BROKER}.core.locks", "        for group, holders in table.lock_table.items():",
         "        for group, holders in dict[str, dict[MessageQueue, str]]().items():"),
        (f"{CLIENT}.consumer.consume.orderly_queue", "        self.locked_ms = -math.inf", "        return"),
    ),
    _mutant(
        "left-in-mid-listener",
        "an orderly queue is given up while its listener runs",
        "orderly",
        ORDER,
        (f"{CLIENT}.consumer.queue",
         "        return self.spared or (former is None and not self.process_queue.in_hand)",
         "        return True"),
    ),
    _mutant(
        "ack-before-flush",
        "with flush=sync a send is acknowledged before it is on the disk",
        "clustering",
        LOST,
        (f"{BROKER}.flush_gate",
         "        self._waiting.append(_Waiting(end_offset, self._loop.time() + self._timeout_s, done))",
         "        return done(None)"),
    ),
    _mutant(
        "one-level-early",
        "a delay level means the one before it",
        "delayed",
        "before it was due",
        (f"{BROKER}.core.schedule", "        return self._delays_ms[level - 1]",
         "        return self._delays_ms[max(level - 2, 0)]"),
    ),
    _mutant(
        "delays-delivered-again",
        "a restarted broker forgets which delayed messages it delivered",
        "delayed",
        "stored twice",
        (f"{BROKER}.core.schedule", "        self._offsets = dict(table.offset_table)",
         "        self._offsets = {}"),
    ),
    _mutant(
        "due-skipped",
        "a delayed message is taken for delivered when its delivery fails",
        "delayed",
        LOST,
        (f"{BROKER}.schedule_service", "        for entry in work.deliver:\n            self._deliver(entry)\n            self._schedule.delivered(level, entry.queue_offset + 1)",
         "        for entry in work.deliver:\n            self._schedule.delivered(level, entry.queue_offset + 1)\n            self._deliver(entry)"),
    ),
    _mutant(
        "retries-not-counted",
        "a message sent back does not count its retries, and never ends",
        "clustering",
        "not consumed, stored twice",
        (f"{BROKER}.handlers.send_back", "        message.reconsume_times = attempts + 1",
         "        message.reconsume_times = attempts"),
    ),
    _mutant(
        "given-up-one-early",
        "a message goes to the dead letters one retry early",
        "clustering",
        "given up early",
        (f"{BROKER}.handlers.send_back", "        if attempts >= most or header.delay_level < 0:",
         "        if attempts + 1 >= most or header.delay_level < 0:"),
    ),
    _mutant(
        "unknown-means-commit",
        "a local transaction that is not decided yet is committed",
        "transactions",
        "seen before commit",
        (f"{CLIENT}.producer.transaction", "    LocalTransactionState.UNKNOW: MessageSysFlag.TRANSACTION_NOT,",
         "    LocalTransactionState.UNKNOW: MessageSysFlag.TRANSACTION_COMMIT,"),
    ),
    _mutant(
        "rollback-means-commit",
        "a transaction that is rolled back is delivered",
        "transactions",
        "rolled back, but seen",
        (f"{BROKER}.handlers.transactions", "            if header.commit_or_rollback == MessageSysFlag.TRANSACTION_COMMIT:",
         "            if header.commit_or_rollback:"),
    ),
    _mutant(
        "end-not-written",
        "the end of a transaction is not written down: it is committed again",
        "transactions",
        "stored twice",
        (f"{BROKER}.transaction_service", "        self._put_op(current)\n        self._queue.ended((current,))",
         "        self._queue.ended((current,))"),
    ),
    _mutant(
        "asked-once",
        "an undecided transaction is given up after one question",
        "transactions",
        LOST,
        (f"{BROKER}.core.transactions", "    if half.check_times >= rules.check_max or",
         "    if half.check_times >= 1 or"),
    ),
    _mutant(
        "offsets-not-read",
        "a restarted broker knows no offset of any group",
        "pulling",
        "went backwards",
        (f"{BROKER}.persistence", "            controller.offsets.load(offsets)\n", "            pass\n"),
    ),
    _mutant(
        "pull-skips-one",
        "the next pull begins one message late",
        "clustering",
        AHEAD,
        (f"{BROKER}.handlers.pull", "            \"nextBeginOffset\": str(result.next_begin_offset),",
         "            \"nextBeginOffset\": str(\n"
         "                result.next_begin_offset + (result.next_begin_offset % 7 == 3)\n            ),"),
    ),
    _mutant(
        "tail-cut-too-far",
        "recovery cuts the last whole record with a torn tail",
        "clustering",
        LOST,
        (f"{STORE}.recovery",
         "        if end.last is not None and end.offset > flushed and end.last.properties.endswith(b\"\\0\"):",
         "        if end.last is not None:"),
    ),
    _mutant(
        "tags-not-compared",
        "neither broker nor client compares tags",
        "clustering",
        "not selected",
        (f"{BROKER}.filtering", "    return PullFilter(subscription.code_set.__contains__)",
         "    return PullFilter()"),
        (f"{CLIENT}.consumer.pull_answer", "    return [message for message in messages if message.tags in tags]",
         "    return messages"),
    ),
    _mutant(
        "condition-ignored",
        "a subscription by a condition gets everything",
        "clustering",
        "not selected",
        (f"{BROKER}.filtering", "        budget.left -= expression.parts\n        return properties is not None and expression.matches(properties)",
         "        budget.left -= expression.parts\n        return properties is not None"),
    ),
    _mutant(
        "ack-one-too-many",
        "of a batch acknowledged in part one message too many counts as consumed",
        "clustering",
        AHEAD,
        (f"{CLIENT}.consumer.listener", "    return max(0, min(ack_index + 1, batch_size))",
         "    return max(0, min(ack_index + 2, batch_size))"),
    ),
    _mutant(
        "copies-lose-properties",
        "what the broker stores again has lost its user's properties",
        "delayed",
        "altered",
        (f"{BROKER}.messages", "        properties=dict(stored.properties),",
         "        properties={n: v for n, v in stored.properties.items() if n.isupper()},"),
    ),
    _mutant(
        "copies-forget-compression",
        "what the broker stores again no longer says that its body is compressed",
        "clustering",
        "altered",
        (f"{BROKER}.messages", "        sys_flag=head.sys_flag,\n        born_timestamp=head.born_timestamp,",
         "        sys_flag=0,\n        born_timestamp=head.born_timestamp,"),
    ),
    _mutant(
        "halves-forgotten",
        "a restarted broker begins at the end of the half messages",
        "transactions",
        "nobody is asked",
        (f"{BROKER}.transaction_service", "        begin = self._offset(names.TRANS_HALF_TOPIC)",
         "        begin = self._store.max_offset(names.TRANS_HALF_TOPIC, 0)"),
    ),
    _mutant(
        "halves-passed",
        "the beginning of the half messages moves past undecided ones",
        "transactions",
        "nobody is asked",
        (f"{BROKER}.core.transactions", "        self.begin = next(iter(self._pending), self._end)",
         "        self.begin = self._end"),
    ),
    _mutant(
        "early-by-a-tenth",
        "every delay is a tenth too short",
        "delayed",
        "before it was due",
        (f"{BROKER}.core.schedule", "        return self._delays_ms[level - 1]",
         "        return self._delays_ms[level - 1] * 9 // 10"),
    ),
    _mutant(
        "one-more-delivered",
        "a delivered delayed message is written down as two",
        "delayed",
        LOST,
        (f"{BROKER}.schedule_service", "            self._schedule.delivered(level, entry.queue_offset + 1)",
         "            self._schedule.delivered(level, entry.queue_offset + 2)"),
    ),
    _mutant(
        "seek-lets-the-old-in",
        "an answer to a pull of before a seek is still taken",
        "pulling",
        "repeated, misplaced, committed, lost, not consumed",
        (f"{CLIENT}.consumer.lite.queues", "        queue.epoch += 1\n", "        queue.epoch += 0\n"),
    ),
    _mutant(
        "topics-not-written",
        "a queue that is added is known until the broker ends",
        "clustering",
        LOST,
        (f"{BROKER}.persistence", "            lambda: controller.topics.generation,\n",
         "            lambda: 0,\n"),
    ),
    _mutant(
        "units-not-synced",
        "a checkpoint vouches for units of queues that are not on the disk",
        "clustering",
        LOST,
        (f"{STORE}.keeper", "        self._sync_queues()\n        self._logics_timestamp = timestamp",
         "        self._logics_timestamp = timestamp"),
    ),
    _mutant(
        "broadcast-one-too-far",
        "a broadcasting member keeps an offset one message too far",
        "broadcasting",
        AHEAD,
        (f"{CLIENT}.consumer.process_queue", "            return max(self.queue_offset_max + 1, self.passed_to)",
         "            return max(self.queue_offset_max + 2, self.passed_to)"),
    ),
)  # fmt: skip
"""Every planted defect."""
