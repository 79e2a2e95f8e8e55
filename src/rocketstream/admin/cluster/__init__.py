"""What there is: topics, brokers and name servers, asked one by one.

Law: it knows nothing of how far a group is.
"""
