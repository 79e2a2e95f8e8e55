"""Access control of a broker: its files, kept up to date, and the guard before every handler.

Law: reads, writes and asks; what counts and who is let in is decided in ``core.acl``.
"""

from rocketstream.server.broker.acl.files import AclFiles
from rocketstream.server.broker.acl.guard import AccessGuard

__all__ = ["AccessGuard", "AclFiles"]
