"""A read of a store directory without a broker: consume queues and commit log, as arrays.

Law: files are only read, and may be those of a running broker: a read covers what existed when it
was planned. ``files`` knows files, ``snapshot`` is for the driver, ``rows`` runs in a task.
"""
