"""The options of all commands that change a cluster, and an ``Admin`` that records the change.

Law: every such command gets its Admin here, so that none forgets the audit file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from rocketstream.cli.declare import Option

if TYPE_CHECKING:
    from rocketstream.admin import Admin

Yes = Annotated[bool, Option("--yes", "-y", help="Do it without asking.")]
DryRun = Annotated[bool, Option("--dry-run", help="Only show what would change; change nothing.")]
AuditFile = Annotated[
    str | None,
    Option(
        "--audit-file",
        metavar="FILE",
        envvar="ROCKETSTREAM_AUDIT_FILE",
        help="Where the change is written down, in JSON lines; without it "
        "`$XDG_STATE_HOME/rocketstream/audit.jsonl`.",
    ),
]


def changing_admin(namesrv: str, audit_file: str | None, mask: str | None = None) -> Admin:
    """Return an Admin that records its changes.

    Args:
        namesrv: name servers to ask.
        audit_file: ``--audit-file``; None is the default file.
        mask: ``--mask`` of commands that show messages; None takes ROCKETSTREAM_MASK.
    """
    from rocketstream.admin import Admin, AuditLog, Masking

    masking = Masking.from_file(mask) if mask else None
    audit = AuditLog(audit_file, face="command line")
    return Admin(namesrv, audit=audit, masking=masking)
