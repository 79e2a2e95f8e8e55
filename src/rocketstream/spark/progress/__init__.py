"""``rocketmq-progress``: consumption progress as rows, a renderer of ``rocketstream.admin``.

Law: nothing here pulls a message.
"""
