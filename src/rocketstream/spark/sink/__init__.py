"""Writing rows as messages: the tasks of ``df.write`` and ``df.writeStream``.

Law: knows nothing of reading; ``columns``, ``batching`` and ``identity`` are pure.
"""
