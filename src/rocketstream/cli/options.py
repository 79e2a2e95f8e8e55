"""Options several commands share, spelled once."""

from __future__ import annotations

from typing import Annotated

from rocketstream.cli.declare import Argument, Option

DEFAULT_NAMESRV = "127.0.0.1:9876"

Namesrv = Annotated[
    str,
    Option(
        "--namesrv",
        "-n",
        envvar="NAMESRV_ADDR",
        metavar="HOST:PORT",
        help="Name server to ask; several separated by ';'.",
    ),
]
Json = Annotated[bool, Option("--json", help="Print data as JSON instead of a table.")]
JsonLines = Annotated[
    bool, Option("--json", help="Print one JSON object per message instead of text.")
]
Topic = Annotated[str, Argument(metavar="TOPIC", help="Name of the topic.")]
From = Annotated[
    str,
    Option(
        "--from",
        metavar="earliest|latest|TIMESTAMP",
        help="Where to begin when there is no progress yet. TIMESTAMP: 2024-05-01T12:00:00, "
        "with or without zone (local time without), or milliseconds since 1970.",
    ),
]
