"""The name server: where clients learn which broker has which topic."""

from rocketstream.server.nameserver.server import NameServer

__all__ = ["NameServer"]
