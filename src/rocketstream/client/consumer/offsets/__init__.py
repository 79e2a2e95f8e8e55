"""Where a group is: offset stores at brokers, in a file, or of the user's own."""
