"""Promise: a send is stored where its result says, or named NOT_SENT, REJECTED or UNKNOWN."""
