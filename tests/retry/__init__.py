"""Promise: a failed message comes back when it is due, and at last goes to the dead letters."""
