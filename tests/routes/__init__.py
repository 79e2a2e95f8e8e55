"""Promise: name servers, routes and brokers' addresses."""
