"""Promise: peers that lie, and bytes nobody should send: an error, and nothing else happens."""
