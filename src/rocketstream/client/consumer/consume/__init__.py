"""Calling listeners, in order or not: threads or tasks, answers, locks of queues."""
