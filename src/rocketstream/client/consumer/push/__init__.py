"""The push consumer: pulls by itself, hands messages to the user's listener."""
