"""A second look, from outside: a generator and a checker that know docs/guarantees.md and no code.

Nothing here imports, or was written after reading, ``rocketstream.testing``, the simulator or the
tests of either. Both share one specification with them, and no assumption.

**Driven** is the package as users have it: a wheel, unpacked into a folder that comes first on the
path (``installed``); ``python -m rocketstream serve`` with options a user gives; clients on real
uvloop, sockets and threads, each a process of its own (``worker``: ``producing``, ``consuming``;
``observer`` looks at committed offsets and dead letters, and reads all queues at the end). Java's
producer and consumer work beside ours in the round marked ``interop`` (``java``).

**Addresses.** The servers listen on 127.0.0.1 and advertise 127.0.0.2, where a process of ours
(``proxy``) listens on the same ports: every byte between clients and servers goes through it.

**Faults** are drawn from a seed (``faults``): servers and workers are killed, stopped in good
order, frozen; connections are cut, refused, held up, slowed, or swallow what they are given. A few
lines of C before the C library of the broker (``shim``) make its disk slow, its fsync fail and its
wall clock jump; a file that takes what is left of a small tmpfs makes its disk full, where one may
be mounted.

**History.** Each process writes what it begins and what it knows of the end, with the machine's
monotonic time, one line of JSON an event, straight to a file of its own (``recording``). A killed
process leaves operations open: they may have happened or not. ``history`` makes values of the
files.

**Rules** (``rules``, pure) are judged over such a history, and each quotes the sentence of the
documentation it stands for; a test looks the sentence up. Copies are allowed where it allows them,
and counted. Each rule is shown an anomaly of its kind that it finds, by hand-made histories, and
whole rounds against a proxy that cheats and a store that was exchanged for an older one are found.

**Jepsen.** ``edn`` writes a history as Jepsen's Kafka workload reads it, and ``kafka_rules``
judges it by that workload's published rules. They are our own reimplementation, from the
description in ``jepsen.tests.kafka``: no registry we may use has an implementation of them.

A round by hand: ``python -m tests.outside --seed 7 --seconds 60``; ``--rounds 0`` goes on for
ever.
"""
