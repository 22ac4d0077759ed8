"""One run of a conversation, from its lease to its end."""
