"""Promise: tags and SQL92 conditions select what they say."""
