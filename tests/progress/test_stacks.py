"""Where listener threads stand, from the stacks that Java's members and ours tell."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rocketstream.admin.core.evidence import busy_listeners, places, threads_of
from rocketstream.client.consumer.consume.workers import TaskPool
from rocketstream.client.instance.remote_control import TASKS_TOLD_MAX, all_stacks

GROUP = "billing"
NAME = "ConsumeMessageThread_billing_1"
LONG = "ConsumeMessageThread_a-group-with-a-long-name_12"


def java(name: str, state: str, *frames: str) -> str:
    """Return a thread as Java's client writes it: the name, padded to 40, before each line."""
    head = f"{name:<40}TID: 31 STATE: {state}"
    return "\n".join([head, *(f"{name:<40}{frame}" for frame in frames), "", ""])


IN_LISTENER = (
    "java.base@17.0.15/jdk.internal.misc.Unsafe.park(Native Method)",
    "java.base@17.0.15/java.util.concurrent.CountDownLatch.await(CountDownLatch.java:230)",
    "app//com.acme.Dao.save(Dao.java:42)",
    "app//com.acme.Listener.consumeMessage(Listener.java:7)",
    "app//org.apache.rocketmq.client.impl.consumer.ConsumeMessageConcurrentlyService"
    "$ConsumeRequest.run(ConsumeMessageConcurrentlyService.java:402)",
    "java.base@17.0.15/java.util.concurrent.ThreadPoolExecutor.runWorker(ThreadPoolExecutor.java)",
)
IDLE = (
    "java.base@17.0.15/jdk.internal.misc.Unsafe.park(Native Method)",
    "java.base@17.0.15/java.util.concurrent.ThreadPoolExecutor.getTask(ThreadPoolExecutor.java:1)",
)
SENDING_BACK = (
    "sun.nio.ch.EPoll.wait(Native Method)",
    "org.apache.rocketmq.client.impl.MQClientAPIImpl.consumerSendMessageBack(MQClientAPIImpl.java)",
    "org.apache.rocketmq.client.impl.consumer.ConsumeMessageConcurrentlyService"
    ".processConsumeResult(ConsumeMessageConcurrentlyService.java:1)",
    "org.apache.rocketmq.client.impl.consumer.ConsumeMessageConcurrentlyService"
    "$ConsumeRequest.run(ConsumeMessageConcurrentlyService.java:402)",
)
SENDING = "org.apache.rocketmq.client.producer.DefaultMQProducer.send(X.java:1)"
SENDING_ON = (SENDING, *IN_LISTENER[3:])


def test_a_java_thread_in_a_listener_is_told_from_an_idle_one() -> None:
    text = java(NAME, "WAITING", *IN_LISTENER) + java(NAME[:-1] + "2", "WAITING", *IDLE)
    one, two = threads_of(text)
    assert (one.name, one.state) == (NAME, "WAITING")
    assert one.place == "com.acme.Dao.save(Dao.java:42)"
    assert one.listener[0] == "jdk.internal.misc.Unsafe.park(Native Method)"
    assert one.listener[-1] == "com.acme.Listener.consumeMessage(Listener.java:7)"
    assert two.listener == ()
    assert two.place is None
    assert busy_listeners((one, two), "billing") == (one,)


def test_a_name_longer_than_its_column_touches_the_frame() -> None:
    (thread,) = threads_of(java(LONG, "RUNNABLE", *IN_LISTENER))
    assert thread.name == LONG
    assert thread.frames[2] == "com.acme.Dao.save(Dao.java:42)"


def test_a_thread_that_sends_back_is_in_no_listener() -> None:
    (thread,) = threads_of(java(NAME, "RUNNABLE", *SENDING_BACK))
    assert thread.listener == ()


def test_a_listener_that_sends_messages_itself_is_a_listener() -> None:
    (thread,) = threads_of(java(NAME, "RUNNABLE", *SENDING_ON))
    assert thread.listener[-1] == "com.acme.Listener.consumeMessage(Listener.java:7)"


def test_threads_of_another_group_in_one_process_do_not_count() -> None:
    found = threads_of(java("ConsumeMessageThread_billing-2_1", "WAITING", *IN_LISTENER))
    assert busy_listeners(found, "billing") == ()


def test_places_are_counted_most_first() -> None:
    found = threads_of(
        java(f"{NAME}1", "WAITING", *IN_LISTENER)
        + java(f"{NAME}2", "WAITING", "x.Y.z(Y.java:1)", *IN_LISTENER[3:])
        + java(f"{NAME}3", "WAITING", *IN_LISTENER)
    )
    assert places(found) == [("com.acme.Dao.save(Dao.java:42)", 2), ("x.Y.z(Y.java:1)", 1)]


def test_our_own_stacks_are_read_as_they_are_written() -> None:
    """An idle pool thread ends in the client's own code; a listener's stands above it."""
    begun, end = threading.Event(), threading.Event()

    def listener() -> None:
        begun.set()
        end.wait(10)

    thread = threading.Thread(target=listener, name=NAME, daemon=True)
    thread.start()
    begun.wait(10)
    found = {each.name: each for each in threads_of(_stacks_of_threads())}
    end.set()
    thread.join(10)
    assert found[NAME].frames[-1].startswith("_bootstrap (")
    assert any(frame.startswith("listener (") for frame in found[NAME].frames)
    (ours,) = threads_of(
        f'"{NAME}" daemon TID: 7\n'
        "    at wait (/usr/lib/python3.11/threading.py:327)\n"
        "        gotit = waiter.acquire()\n"
        "    at save (/srv/app/orders.py:42)\n"
        "        lock.wait()\n"
        "    at work (/srv/venv/lib/python3.11/rocketstream/client/consumer/consume/c.py:1)\n"
    )
    assert ours.place == "save (/srv/app/orders.py:42)"
    assert ours.listener == (
        "wait (/usr/lib/python3.11/threading.py:327)",
        "save (/srv/app/orders.py:42)",
    )


def _stacks_of_threads() -> str:
    async def tell() -> str:
        return all_stacks()

    return asyncio.run(tell())


def test_a_coroutine_listener_is_placed_where_its_task_waits() -> None:
    """A slow coroutine listener stands in no thread: what its tasks await tells where."""

    async def query() -> None:
        await asyncio.sleep(60)

    async def listener() -> None:
        await query()

    async def bystander() -> None:
        await query()

    async def tell() -> str:
        pool = TaskPool(listener, 2, GROUP)
        other = asyncio.create_task(bystander())
        for _ in range(2):
            pool.start_one()
            await asyncio.sleep(0)
        text = all_stacks()
        other.cancel()
        await pool.shutdown(0)
        return text

    threads = threads_of(asyncio.run(tell()))
    busy = busy_listeners(threads, GROUP)
    assert sorted(each.name for each in busy) == [
        f"ConsumeMessageThread_{GROUP}_1",
        f"ConsumeMessageThread_{GROUP}_2",
    ]
    assert all(each.is_task for each in busy)
    ((place, number),) = places(busy)
    assert place.startswith(f"query ({__file__}:")
    assert number == 2
    assert [each.listener[-1].split()[0] for each in busy] == ["listener"] * 2
    (main,) = (each for each in threads if each.name == "MainThread")
    assert not any(frame.startswith("query (") for frame in main.frames)


def test_of_very_many_tasks_those_of_listeners_are_told_first() -> None:
    async def wait() -> None:
        await asyncio.sleep(60)

    async def tell() -> str:
        others = [asyncio.create_task(wait()) for _ in range(TASKS_TOLD_MAX + 20)]
        pool = TaskPool(wait, 1, GROUP)
        pool.start_one()
        await asyncio.sleep(0)
        text = all_stacks()
        for each in others:
            each.cancel()
        await pool.shutdown(0)
        return text

    text = asyncio.run(tell())
    assert len(busy_listeners(threads_of(text), GROUP)) == 1
    assert text.count('" asyncio task') == TASKS_TOLD_MAX
    assert "21 more asyncio tasks are not shown" in text


def test_text_that_is_no_stack_is_no_thread() -> None:
    assert threads_of(None) == ()
    assert threads_of("MainThread") == ()
    assert threads_of('"" TID: x\n    at nowhere') == ()


@pytest.mark.parametrize(
    "line",
    [" " * 4_000_000, "    at " + "a (b:" * 800_000, "a TID: 1" * 500_000, '"' * 4_000_000],
    ids=["blanks", "frames", "threads", "quotes"],
)
def test_a_line_that_is_made_to_be_searched_for_hours_is_read_in_one_pass(line: str) -> None:
    """While a pattern is searched no other thread of the process runs."""
    (thread,) = threads_of(java(NAME, "WAITING", *IDLE) + line)
    assert thread.name == NAME
