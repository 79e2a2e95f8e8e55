"""The routing table and settings of a name server.

Pure: no sockets and no clock.
"""
