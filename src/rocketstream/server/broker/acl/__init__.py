"""Access control of a broker: its account files, and the guard before every handler.

``core.acl`` decides which entries count and who is let in.
"""

from rocketstream.server.broker.acl.files import AclFiles
from rocketstream.server.broker.acl.guard import AccessGuard, NameServerGuard, random_account

__all__ = ["AccessGuard", "AclFiles", "NameServerGuard", "random_account"]
