"""Promise: a message is seen after its commit, never after a rollback; asked about until then."""
