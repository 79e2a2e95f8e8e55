"""Writing rows as messages: the tasks of ``df.write`` and ``df.writeStream``."""
