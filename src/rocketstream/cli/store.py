"""``rocketstream store check``: a whole store, stopped or in use.

``server.store_check`` finds the damages, a line each.
"""

from __future__ import annotations

from typing import Annotated

from rocketstream._util.home import expanded
from rocketstream.cli.declare import Commands, Exit, Option
from rocketstream.cli.failure import EXIT_FAILED
from rocketstream.cli.options import Json
from rocketstream.cli.output import json_line, plural, print_line
from rocketstream.cli.serve_options import DEFAULT_STORE, Store


def add_to(app: Commands) -> None:
    """Add the command group."""
    commands = Commands("store", "The files of a message store on this machine.")
    commands.add(check, epilog="Example: `rocketstream store check --store ./store --rate 50`")
    app.add_command(commands)


def check(
    store: Store = DEFAULT_STORE,
    rate: Annotated[
        int | None,
        Option(
            "--rate",
            min=1,
            metavar="MIB",
            help="Read at most this many MiB of the log in a second, beside a broker that runs.",
        ),
    ] = None,
    as_json_: Json = False,
) -> None:
    """Check every record, every queue's units and every state file; change nothing.

    Prints a line for each damage, and ends with code 1 then. After a clean stop a broker looks at
    the last 128 MiB of the log only. The store may be in use; what comes meanwhile is left out.
    """
    from rocketstream.server.store_check import StoreCheck

    work = StoreCheck(expanded(store).absolute(), rate * 1024 * 1024 if rate else None)
    found = 0
    for line in work.findings():
        found += 1
        print_line(json_line({"finding": line}) if as_json_ else line)
    if as_json_:
        print_line(json_line({"records": work.records, "findings": found}))
    else:
        print_line(f"{plural(work.records, 'record')} checked, {plural(found, 'finding')}")
    if found:
        raise Exit(EXIT_FAILED)
