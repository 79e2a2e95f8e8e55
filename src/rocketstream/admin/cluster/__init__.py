"""The parts of a cluster: topics, brokers and name servers, asked one by one."""
