"""Promise: members share the queues, take over, and repeat nothing that was committed."""
