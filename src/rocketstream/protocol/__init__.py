"""The remoting protocol and message encodings of RocketMQ as plain functions over bytes.

Law: no sockets, files, clocks, threads, logging or randomness; what a peer sent is hostile until
checked, and anything malformed raises ``RemoteProtocolError`` or a subclass.
"""
