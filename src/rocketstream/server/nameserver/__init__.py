"""The name server: tells clients which broker has which topic."""

from rocketstream.server.nameserver.server import NameServer

__all__ = ["NameServer"]
