"""DAGs of the tests; Airflow imports this file, and nothing else does.

The environment says where the tests look: TOLD is a file of events, OBEYED of messages, LAND
the command that lands.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any

from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, Asset, AssetWatcher

from rocketstream import ConsumeFromWhere, LitePullConsumer


def waiting(topic: str, group: str, repeat_after_s: float = 3600.0) -> Asset:
    """Return an asset that has an event when messages of a topic wait."""
    trigger = MessageQueueTrigger(
        scheme="rocketmq",
        topics=[topic],
        group=group,
        poll_interval_s=0.5,
        repeat_after_s=repeat_after_s,
    )
    return Asset(f"{topic}_waiting", watchers=[AssetWatcher(name=topic, trigger=trigger)])


def tell(triggering_asset_events: Any) -> None:
    """Write what the events carried."""
    with open(os.environ["TOLD"], "a", encoding="utf-8") as file:
        for events in triggering_asset_events.values():
            for event in events:
                file.write(json.dumps(event.extra) + "\n")


def obey() -> None:
    """Take the messages that wait, and write them down, before they count as consumed."""
    begin = ConsumeFromWhere.FIRST_OFFSET
    with LitePullConsumer(
        "workers", subscription={"jobs": "*"}, auto_commit=False, consume_from_where=begin
    ) as consumer:
        while messages := consumer.poll(5_000):
            with open(os.environ["OBEYED"], "a", encoding="utf-8") as file:
                file.writelines(message.body.decode() + "\n" for message in messages)
            consumer.commit_sync()


patience: dict[str, Any] = {"retries": 3, "retry_delay": timedelta(seconds=1)}

with DAG("tell", schedule=[waiting("notes", "readers")], is_paused_upon_creation=False):
    PythonOperator(task_id="tell", python_callable=tell, **patience)

with DAG(
    "obey",
    schedule=[waiting("jobs", "workers", repeat_after_s=30)],
    max_active_runs=1,
    is_paused_upon_creation=False,
):
    PythonOperator(task_id="obey", python_callable=obey, **patience)

with DAG(
    "land",
    schedule=[waiting("orders", "landing")],
    max_active_runs=1,
    is_paused_upon_creation=False,
):
    BashOperator(task_id="land", bash_command=os.environ["LAND"], **patience)
