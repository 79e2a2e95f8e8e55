"""Moving remoting commands between processes: addresses, TLS, asyncio and blocking connections.

Law: the transport knows frames and opaque ids, never the meaning of a command.
"""
