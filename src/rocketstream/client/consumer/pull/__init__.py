"""The pull consumer: queues and offsets are the caller's."""
