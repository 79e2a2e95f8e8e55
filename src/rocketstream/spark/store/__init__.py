"""Reading a store directory without a broker: consume queues and commit log, as arrays.

Law: files are only ever read, and may be those of a running broker: what is read is what was there
when the read was planned. ``directory`` and ``commit_log`` know files, ``snapshot`` and
``planning`` are for the driver, ``rows`` runs in a task.
"""
