"""Writing rows as messages: what a task of ``df.write`` or ``df.writeStream`` does.

Law: knows nothing of reading; ``columns``, ``batching`` and ``identity`` are pure.
"""
