"""The decisions behind operating a cluster: how answers join, what figures mean.

Pure: no sockets, clock, threads or logging; answers come in, values go out.
"""
