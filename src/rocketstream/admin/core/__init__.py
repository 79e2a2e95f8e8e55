"""The decisions of operating a cluster: how answers join, what figures mean.

Law: pure. No sockets, clock, threads or logging; what was told comes in, values go out.
"""
