"""The remoting protocol and message encodings of RocketMQ as plain functions over bytes.

Pure: no sockets, files, clocks, threads, logging or randomness.

Law: the bytes of a peer are hostile until checked; anything malformed raises
``RemoteProtocolError`` or a subclass.

Numbers such as C-187 in these modules are those of docs/behaviours.md.
"""
