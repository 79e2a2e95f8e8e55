"""What a client asks name servers and brokers besides sending and pulling.

Law: questions and answers; what they mean to an operator is told by ``rocketstream.admin``.
"""
