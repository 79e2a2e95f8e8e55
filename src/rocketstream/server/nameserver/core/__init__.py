"""The routing table and settings of a name server, free of sockets and clocks."""
