"""Promise: accounts, rights, signatures, TLS, and what is masked."""
