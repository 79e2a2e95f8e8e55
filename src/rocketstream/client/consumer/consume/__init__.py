"""Calling listeners: worker threads or tasks, in order or not, and what their answers mean.

Law: knows nothing of pulling; results go to the offset updater and to the send-back.
"""
