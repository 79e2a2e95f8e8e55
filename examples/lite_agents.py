"""Agents with an inbox each: lite topics, of which there may be a hundred thousand.

It takes brokers of Apache's 5.5 or later; docs/lite-topics.md tells how broker, topic and group are
set up. Then: NAMESRV_ADDR=host:9876 python examples/lite_agents.py
"""

from __future__ import annotations

import os
import threading

from rocketstream import (
    ConsumeConcurrentlyStatus,
    LitePushConsumer,
    LiteTopicContext,
    Message,
    MessageExt,
    Producer,
)

TOPIC, GROUP = "agents", "agents-group"
AGENTS, QUESTIONS = 50, 4


def main() -> None:
    """Have every agent answer its questions in order, and say so."""
    namesrv_addr = os.environ.get("NAMESRV_ADDR", "")
    if not namesrv_addr:
        print("this needs a cluster of Apache's 5.5 or later: set NAMESRV_ADDR")
        return
    answered: dict[str, list[int]] = {f"agent-{number}": [] for number in range(AGENTS)}
    done = threading.Event()

    def answer(messages: list[MessageExt], context: LiteTopicContext) -> ConsumeConcurrentlyStatus:
        # One agent's questions come one after the other, those of others meanwhile.
        answered[context.lite_topic] += [int(message.body) for message in messages]
        if all(len(numbers) >= QUESTIONS for numbers in list(answered.values())):
            done.set()
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    with (
        LitePushConsumer(
            GROUP, TOPIC, namesrv_addr=namesrv_addr, listener=answer, lite_topics=answered
        ),
        Producer("example-askers", namesrv_addr=namesrv_addr) as producer,
    ):
        for number in range(QUESTIONS):
            for agent in answered:
                producer.send(Message(TOPIC, str(number), lite_topic=agent))
        done.wait(60)
    in_order = sum(numbers == sorted(numbers) for numbers in answered.values())
    print(f"{in_order} of {AGENTS} agents answered {QUESTIONS} questions in order")


if __name__ == "__main__":
    main()
