"""Promise: what ``rocketstream.testing`` gives to users' tests."""
