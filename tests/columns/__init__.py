"""Promise: messages in columns: records to Arrow, and what users have to messages."""
