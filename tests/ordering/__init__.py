"""Promise: one queue, one owner, one message after the other."""
