"""Tests of the transport over real loopback sockets."""
