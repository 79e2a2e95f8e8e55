"""What a cluster consists of: topics, brokers and name servers, asked one by one.

Law: knows nothing of the progress of groups.
"""
