"""Tests of the message store: files, reading, flushing, recovery."""
