"""Moving remoting commands between processes: addresses, TLS, asyncio and blocking connections.

Law: knows frames and opaque ids, nothing of what a command means.
"""
