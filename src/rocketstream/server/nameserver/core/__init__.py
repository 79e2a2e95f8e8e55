"""What a name server knows and decides, free of sockets and clocks."""
