"""The bounds of what a peer or a user can make us hold, take or wait for, with upstream's values.

A bound that is one module's own business (a tolerance, a size of a step) stands in that module.
"""

from __future__ import annotations

from typing import Final

# --- wire (NettyDecoder) --------------------------------------------------------------------------
FRAME_BYTES_MAX: Final = 16_777_216
"""A frame including its 4 length bytes; upstream com.rocketmq.remoting.frameMaxLength."""
FRAME_PREFIX_BYTES: Final = 4
HEADER_BYTES_MAX: Final = 262_144
"""The header of a frame a server receives; upstream 16 MiB. The longest request carries 32,767
bytes of properties, each of which may be written as six. An answer may be longer: that to a batch
names each of its messages."""
HEADER_FIELDS_MAX: Final = 1_024
"""Fields of one header; upstream's fullest has 15."""
HEADER_LENIENT_BYTES_MAX: Final = 8_192
"""A header that is not standard JSON, which costs a hundred times as much to read."""

# --- JSON -----------------------------------------------------------------------------------------
JSON_VALUES_MAX: Final = 1_000_000
"""Commas, colons and brackets of one text read by a client: they decide what reading costs."""
JSON_LENIENT_CHARS_MAX: Final = 2 * 1024 * 1024
"""A text that is not standard JSON, read by a client."""
REQUEST_JSON_VALUES_MAX: Final = 65_536
"""Commas, colons and brackets in the body of one request: enough for 3,800 subscriptions, or locks
of 8,000 queues."""
REQUEST_JSON_BYTES_MAX: Final = 4 * 1024 * 1024
"""The body of one request, where it is JSON: even looking for its commas takes a millisecond for
each MiB. Locks of 8,000 queues with the longest topic names need 2 MiB."""
REQUEST_JSON_LENIENT_CHARS_MAX: Final = 65_536
"""A body of a request that is not standard JSON."""
REGISTRATION_JSON_VALUES_MAX: Final = 400_000
"""Commas, colons and brackets of a broker's registration: enough for 20,000 topics."""
REGISTRATION_BYTES_MAX: Final = 8 * 1024 * 1024
"""A registration; a compressed one, inflated."""
REGISTRATION_TOPICS_MAX: Final = 50_000
"""Topics one compressed registration may name; they are taken over in one go."""

ACL_FILE_BYTES_MAX: Final = 4 * 1024 * 1024
"""A file of accounts is read on the broker's loop, every second; some 20,000 accounts."""

# --- messages (C-86, C-94, C-95, C-430) -----------------------------------------------------------
MESSAGE_BODY_BYTES_MAX: Final = 4 * 1024 * 1024
PROPERTIES_BYTES_MAX: Final = 32_767
RECONSUME_TIMES_MAX: Final = 2**31 - 1
"""Retries of a message: four bytes of a record, and an int of the requests that send it back."""
DELAY_LEVEL_MAX: Final = 18
"""The highest delay level of brokers whose ``messageDelayLevel`` is the usual one."""
TOPIC_CHARS_MAX: Final = 127
GROUP_CHARS_MAX: Final = 255
KEPT_NAME_CHARS_MAX: Final = 255
"""A name a broker keeps as a peer gave it: a client id, an access key, a group, a broker, a topic.
The longest topic is that of a group's retries: a directory's name."""
LITE_TOPIC_CHARS_MAX: Final = 64
"""Characters of a lite topic's name: the default bound of Apache's 5.5 proxy and clients."""
LITE_NAMES_PER_REQUEST: Final = 5_000
"""Lite topics of one request to a broker where more can follow; 0.4 MB of JSON at most."""
LITE_POP_MESSAGES_MAX: Final = 32
"""Messages of one answer with messages of lite topics; brokers refuse to be asked for more."""
BATCH_MESSAGES_MAX: Final = 16_384
"""Messages of one batch."""
BATCH_STORED_BYTES_MAX: Final = 8 * 1024 * 1024
"""Records made of one batch, together: the properties of a batch are copied to each of its
messages. Upstream allows little more than the greatest body, 4 MiB."""
KEYS_MAX: Final = 256
"""Keys by which one message can be found; upstream has no bound. Further keys stay in its
properties but are not indexed."""
FILE_NAME_BYTES_MAX: Final = 255
"""A topic is a directory: longer names no file system takes."""
COLUMNS_BYTES_MAX: Final = 64 * 1024 * 1024
"""Once so many bytes of answers are taken for a record batch no further one is: Arrow's offsets
within a column have 31 bits, and what is decoded is held twice meanwhile."""

DECOMPRESSED_BODY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Ceiling for one inflated body: a few KiB of zlib must not become gigabytes."""

SEND_MANY_MESSAGES: Final = 500
SEND_MANY_BYTES: Final = 256 * 1024
"""Most messages and bytes of one request of ``send_many``, as of Spark's sink."""
SEND_MANY_REQUESTS: Final = 8
"""Requests one ``send_many`` has on their way: no more than ``SENDS_MESSAGES_MAX`` messages."""
SEND_MANY_WAITING_MAX: Final = 64
"""Requests that wait in it, most of them for the one before in their queue: 16 MiB."""
SENDS_MESSAGES_MAX: Final = 4_096
"""Messages one Spark task has on their way over its connections. The answer to a batch names each
of its messages, 33 bytes: so many fit the buffers between a broker and a client that is sending."""

# --- transport (C-20) -----------------------------------------------------------------------------
CONNECT_TIMEOUT_MS: Final = 3_000
IDLE_CLOSE_MS: Final = 120_000
SILENT_CLOSE_MS: Final = 2_000
"""A client's connection is closed when no answer has come over it for so long since a request that
timed out was sent, however short the request's own time: less is a peer that pauses. Upstream
closes at every synchronous request that times out."""
ROUTE_RENEWAL_INTERVAL_MS: Final = 1_000
"""Sends that reach no broker ask for the route again, once in this time for each topic."""
ROUTE_RENEWAL_WAIT_MS: Final = 500
"""So long they wait for the answer; then they go on with the queues they know."""
ROUTE_QUESTIONS_AT_ONCE: Final = 16
"""Routes one client asks for at a time when it looks at all of its topics again."""
UNUSED_TOPIC_MS: Final = 300_000
"""A topic that does not exist, or that no client wants, is dropped when nobody has used it for so
long."""
LOST_BROKER_TRIES_MS: Final = 120_000
"""So long a broker whose connection was lost is tried again once no route names it any more: it
comes back after an upgrade, and the name servers are asked for it then."""
REQUESTS_IN_FLIGHT_MAX: Final = 65_535
"""Per connection; upstream clientAsyncSemaphoreValue."""
WRITE_BUFFER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes queued for a peer that does not read; beyond it the connection is closed."""
CONNECTIONS_MAX: Final = 10_000
"""Connections one server accepts."""
REQUEST_BODY_BYTES_MAX: Final = 8 * 1024 * 1024
"""A body of a request a server keeps: the greatest registration. Brokers keep less, the greatest
message. A greater one is read and thrown away, and the request refused."""
SERVER_READ_BYTES: Final = 64 * 1024
"""Bytes a server reads of a connection at a time; all connections share the memory."""
SERVER_READ_BYTES_CROWDED: Final = 8 * 1024
"""The same while great frames wait for room: the next one shall not hold much while it waits."""
SERVER_LINE_BYTES: Final = 8 * 1024
"""Bytes a server reads on of a connection that waits for its turn: the next small requests, so that
each need not stop and start its reading."""
FRAME_FREE_BYTES: Final = 256 * 1024
"""A frame up to this size is read as it comes; a greater one when there is room for it."""
FRAME_ROOM_BYTES_MAX: Final = 9 * 1024 * 1024
"""Room for greater frames of all connections of one server; the others wait unread, so that TCP
holds their senders back."""
SERVER_BUFFER_BYTES_MAX: Final = 20 * 1024 * 1024
"""Bytes all connections of one server hold together, of incomplete requests and of answers that are
not taken. Beyond it the connection that holds most for longest is closed."""
SERVER_WRITE_PAUSE_BYTES: Final = 128 * 1024
"""A peer that leaves so much untaken is served no further until it reads."""
FRAME_GRACE_MS: Final = 10_000
FRAME_BYTES_PER_MS_MIN: Final = 512
"""A frame must be complete so long after its first byte: the grace, and its size at this rate."""
ROOM_GRACE_MS: Final = 3_000
ROOM_BYTES_PER_MS_MIN: Final = 2_048
"""The same for a frame that has room while others wait for theirs."""
WORK_SLICE_MS: Final = 0.25
"""How long one connection works before others get their turn; no request is interrupted."""
WORK_PASS_MS: Final = 0.5
"""How long those in line work, before the loop looks for news from all; and how long those whose
bytes it brought."""
BLOCKING_CONNECTIONS_PER_BROKER_MAX: Final = 16
"""Sockets a sync producer keeps to one broker; more threads wait for one."""
ADMIN_REQUESTS_IN_FLIGHT_MAX: Final = 16
"""Requests of one sweep under way to one broker; its admin pool has 16 threads by default."""
ADMIN_BROKERS_AT_ONCE_MAX: Final = 8
"""Brokers one sweep asks at the same time."""
ADMIN_STORE_TIMES_MAX: Final = 50_000
"""Store times an ``Admin`` remembers of a broker from sweep to sweep, one per queue behind."""
ADMIN_DELAYED_READ_MAX: Final = 500
"""Messages waiting for their delay that one sweep reads of a broker; the next goes on there."""
ADMIN_DELAYED_KEPT_MAX: Final = 20_000
"""Messages waiting for their delay an ``Admin`` remembers of a broker."""
ADMIN_LOST_BROKER_S: Final = 24 * 3_600
"""How long a broker that is registered no more counts as missing; then it was taken away on
purpose."""
FILTER_ENTRIES_PER_REQUEST: Final = 10_000
"""Entries of a consume queue asked for at a time: 0.8 MB of JSON."""
FILTER_ENTRIES_MAX: Final = 400_000
"""Entries examined to count the messages a filter selects in a topic at a broker; some 2 s."""
FILTER_TEXTS_CHECKED: Final = 16
"""Messages of a queue read to see whether a tag is meant and not another of its hash."""
FILTER_MESSAGES_READ_MAX: Final = 4_096
"""Messages of a queue read where tags of one hash are found."""
FILTER_SAMPLE: Final = 384
"""Messages of a queue a condition is evaluated on; bounds of 5 % at worst."""
FILTER_BYTES_READ_MAX: Final = 16 * 1024 * 1024
"""Bytes of messages read at a time to count those a filter selects."""
ADMIN_LOOKS_AT_ONCE_MAX: Final = 16
"""Threads that find out why one group is behind."""
ADMIN_LOOKS_MAX: Final = 64
"""Members of one group that are asked for their running info, stacks included: some 50 KB each."""
ADMIN_CALLS_AT_ONCE_MAX: Final = 8
"""Threads of one asyncio ``Admin``; more calls wait for one, so a broker sees no more at once."""

# --- store ----------------------------------------------------------------------------------------
QUERY_BYTES_MAX: Final = 8 * 1024 * 1024
"""Records found by one key in one answer; Java's clients read no frame above 16 MiB."""
STATISTICS_MAX: Final = 100_000
"""Queues a group pulls from, and topics it sends messages of back, that are counted one by one.
Something new takes the place of what has not changed for ten minutes."""
COMMIT_LOG_FILE_BYTES: Final = 1024 * 1024 * 1024
CONSUME_QUEUE_FILE_BYTES: Final = 300_000 * 20
COMMIT_LOG_END_BLANK_BYTES: Final = 8
STORE_STAMP_HELD_MS_MAX: Final = 10_000
"""How far the clock may be set back before store stamps follow it; less is hidden, so that a search
by time finds stamps in order."""
QUEUE_MAPS_MAX: Final = 4_096
"""Consume queue files in memory at once, where the system allows four times as many descriptors."""
SYNC_FLUSH_TIMEOUT_MS: Final = 5_000

# --- broker ---------------------------------------------------------------------------------------
HELD_PULLS_MAX: Final = 100_000
"""Parked long polls; upstream's pull queue capacity."""
TOPICS_MAX: Final = 20_000
"""Topics of one broker, retry topics included; as many as one registration can name."""
GROUPS_MAX: Final = 20_000
"""Consumer groups of one broker; most come by themselves, with a heartbeat or a pull."""
CONSUMER_OFFSETS_MAX: Final = 500_000
"""Offsets one broker keeps, each of a group in a queue; a million bytes of file for 80,000."""
NAMESRV_BROKERS_MAX: Final = 1_000
NAMESRV_TOPICS_MAX: Final = 200_000
"""Topics of all brokers a name server knows."""
NAMESRV_SETTINGS_MAX: Final = 10_000
NAMESRV_SETTINGS_CHARS_MAX: Final = 4 * 1024 * 1024
"""Settings of a name server, and their names and values together: all are written at once."""
HELD_PULLS_OF_CONNECTION_MAX: Final = 20_000
"""Of one connection: one for each queue and group it consumes. More are answered at once."""
HELD_PULLS_OF_QUEUE_MAX: Final = 256
"""Of one connection for one queue: one for each of its groups. More are answered at once."""
HELD_PULLS_BYTES_MAX: Final = 128 * 1024 * 1024
HELD_PULLS_BYTES_OF_CONNECTION_MAX: Final = 32 * 1024 * 1024
"""Bytes of held pulls and of the tests of their subscriptions; an ordinary one has half a KiB. More
are answered at once."""
SCAN_UNITS_MAX: Final = 32_768
"""Entries of a queue's index looked at for one pull, however many messages it asks for."""
UNIT_SEARCH_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of the log searched for the record of a damaged unit: a tenth of a second."""
LOCK_LIVE_MS: Final = 60_000
LOCK_GRACE_MS: Final = 30_000
"""How long a queue waits for its old holder after a restart of the broker: as long as clients,
Java's too, trust a lease they could not renew (rocketmq.client.rebalance.lockMaxLiveTime)."""
LOCK_SAVE_WAIT_MS: Final = 500
"""Locks are answered when they are written down, or after this time without those that are not;
clients wait a second for it."""
QUEUE_LOCKS_MAX: Final = 200_000
"""Leases of all groups together; a client names the queues, so it could name any number."""
CLIENT_EXPIRED_MS: Final = 120_000
BROKER_EXPIRED_MS: Final = 120_000
TRANSFER_BYTES_IN_MEMORY_MAX: Final = 262_144
TRANSFER_COUNT_IN_MEMORY_MAX: Final = 1024
"""Messages of one pull reply; upstream 32. A client gets no more than it asked for (32 by default),
so only those that ask for more, such as the Spark source, see the difference."""

# --- client ---------------------------------------------------------------------------------------
QUEUE_RELEASE_WAIT_MS: Final = 1_000
"""How long a queue that a rebalance gives up waits for listener calls that run (C-179)."""
HAND_BACK_WAIT_MS: Final = 30_000
"""For so long a member whose connection is back asks before it commits: whoever had its queues
meanwhile commits last, and further, when a rebalance, every 20 s at least, has them given back."""
LOCAL_TRANSACTIONS_MAX: Final = 64
"""Plain local transactions that an asyncio producer runs at once, each on a thread; others wait."""
OFFSET_CHECK_INTERVAL_MS: Final = 60_000
"""An offset that a broker confirmed and that has not changed since is checked so often."""
STANDSTILL_MS: Final = 30_000
"""A wait that ends later by more was that of a process that stood still: it was stopped, or the
machine slept, and nothing else in it worked meanwhile."""
OFFSETS_UNTOLD_MS: Final = 10_000
"""A member that has told no offsets for so long, or for two intervals, asks before it tells some:
it was stopped or blocked, and another one may have had its queues."""
QUEUES_AT_ONCE: Final = 256
"""Queues whose offsets one consumer asks for, or tells, at a time: with tens of thousands of them,
as a wrong route may name, its loop would do nothing else meanwhile."""
OFFSET_CHECKS_MAX: Final = 256
"""So many are asked about at once; the others in the next round."""
ASYNC_SENDS_IN_FLIGHT_MAX: Final = 10_000
"""Messages one producer has on their way at once; more callers wait."""
ASYNC_SEND_BYTES_IN_FLIGHT_MAX: Final = 32 * 1024 * 1024
"""Their bodies together; half of what one connection buffers."""
GATHERED_MESSAGES_MAX: Final = 1_024
"""Plain sends in one batch of ``auto_batch``; the answer names each, 33 bytes."""
ERROR_TEXT_CHARS_MAX: Final = 8_192
"""Text of one error: it may quote a peer, and goes into logs."""
REMARK_CHARS_MAX: Final = 1_024
"""Of a peer's remark in the text of an error; the whole remark is its attribute."""
OUTAGES_MAX: Final = 1_024
"""Failures of one client that are remembered, to be logged once; more forget the oldest."""
TOPIC_QUEUES_MAX: Final = 65_536
"""Queues of one broker in one topic; a route that names more is refused."""
ROUTE_QUEUES_MAX: Final = 262_144
"""Queues of all brokers in one topic, likewise: they are made at once, a quarter of a second for so
many, of a text that needs a few bytes for thousands."""

SPARK_CALLS_LEFT_BEHIND_MAX: Final = 64
"""Listener calls that took too long and still run in one Python worker of Spark; one more fails the
task, and with it the worker, whose end ends the calls."""
SPARK_LISTENERS_KEPT_MAX: Final = 16
"""Listeners one Python worker of Spark keeps unpacked between tasks; more forget the oldest."""

SQL_EXPRESSION_CHARS_MAX: Final = 65_536
"""Longest SQL92 condition accepted; it is compiled for every subscription."""

SQL_DEPTH_MAX: Final = 64
"""Parentheses, signs and comparisons nested in one SQL92 condition: compiling and evaluating
recurse this deep; AND and OR do not nest however many parts they join."""

SQL_TOKENS_MAX: Final = 12_000
"""Words of one SQL92 condition: they decide what compiling costs."""

SQL_PARTS_MAX: Final = 6_144
"""Parts of one SQL92 condition: they decide what evaluating it for one message costs. A search
within a text counts as 32."""

FILTER_STEPS_PER_PULL: Final = 32_768
"""Parts of conditions evaluated for one pull; then its answer has the messages found so far, and
the next pull goes on from there. Reading a message counts too, by its size."""

FILTER_STEPS_PER_ARRIVAL: Final = 2_000
"""The same for the pulls that wait when a message arrives; those not looked at are answered."""

CONDITION_CHARS_MAX: Final = 4 * 1024 * 1024
"""All SQL92 conditions of the subscribers of one broker, together."""

SUBSCRIPTIONS_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of the subscriptions of all consumers of one broker; one without tags has less than a
KiB."""

TRACE_CONTEXTS_MAX: Final = 1_024
"""Sends and listener calls whose trace waits to be sent; more are dropped and counted (C-541)."""
TRACE_MESSAGE_BYTES_MAX: Final = 128_000
TRACE_FLUSH_BYTES: Final = 118_000
"""A trace message of this size is sent at once (C-542)."""
TRACE_MESSAGES_ON_WAY_MAX: Final = 64
"""Trace messages not answered yet; more are dropped and counted."""
TRACE_KEYS_BYTES: Final = 24_000
"""One with keys of this size too: the properties of a message end at 32,767 bytes."""
TRACE_KEYS_BYTES_MAX: Final = 32_000
"""Keys of one trace message; the message's other properties need the rest."""

DASHBOARD_SESSION_IDLE_MS: Final = 60 * 60_000
"""A login of the dashboard ends after so long without a request; a page left open asks on."""
DASHBOARD_SESSION_MS: Final = 12 * 60 * 60_000
"""It ends after so long in any case."""
DASHBOARD_SESSIONS_MAX: Final = 1_024
"""Logins at once; one more ends the oldest."""
DASHBOARD_BODY_BYTES_MAX: Final = 64 * 1024
"""Largest form the dashboard takes."""
DASHBOARD_ASKING_MAX: Final = 4
"""Questions the dashboard's pages have under way at the brokers, for all users together."""
DASHBOARD_WAITING_MAX: Final = 16
"""Questions that wait for their turn; one more is refused (503)."""
DASHBOARD_ANSWER_MS: Final = 15_000
"""How long a page waits for an answer; then it says so (504), and the question keeps its place."""
DASHBOARD_KEPT_MAX: Final = 64
"""Answers kept for the next equal question, and changes kept whose pages may be asked for."""
DASHBOARD_JOBS_MAX: Final = 4
"""Redrives the dashboard runs at once."""
DASHBOARD_ROWS_MAX: Final = 500
"""Rows of one table on a page; more are found by the page's filter."""
DASHBOARD_PAGE_ROWS: Final = 50
"""Rows of a list of groups or topics on one page; the others are on further pages."""
DASHBOARD_MESSAGES_MAX: Final = 64
"""Messages one search shows."""
DASHBOARD_BODY_SHOWN_CHARS: Final = 64 * 1024
"""Of a message's body on a page."""
SHOWN_BODY_CHARS_MAX: Final = 65_536
"""Characters of one body that are shown; a longer body is cut, and says so."""
SEARCH_MESSAGES_MAX: Final = 1_000
"""Messages of one answer to a search; the next ones are had by going on."""
SEND_BACK_CAUSE_CHARS_MAX: Final = 256
"""Of an exception written into what is sent back: it counts against the properties of a message."""
SEND_BACK_WHERE_CHARS_MAX: Final = 160
LETTER_TEMPLATES_MAX: Final = 8
"""Texts one exception of one place may have before its dead letters count as one cause."""
DASHBOARD_EXAMINED_MAX: Final = 5_000
"""Messages one search looks at; its next page goes on from there."""
DASHBOARD_LETTERS_MAX: Final = 20_000
"""Dead letters of each queue that are looked at for their causes, the newest."""
DASHBOARD_PREVIEW_CHARS: Final = 160
"""Of a body in a list."""
DASHBOARD_SPARK_MAX: Final = 20
"""Spark queries whose members are asked how far they are, for one page."""
