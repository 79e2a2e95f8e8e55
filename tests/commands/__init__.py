"""Promise: the command line as such: words, tables, terminals, interrupts."""
