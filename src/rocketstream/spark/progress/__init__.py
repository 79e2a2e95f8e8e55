"""``rocketmq-progress``: consumption progress as rows, a renderer of ``rocketstream.admin``.

Law: knows groups and offsets but no messages; nothing here pulls.
"""
