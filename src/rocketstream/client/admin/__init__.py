"""Questions of clients and tools to name servers and brokers.

``rocketstream.admin`` says what the answers mean to an operator.
"""
