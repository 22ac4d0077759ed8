"""What the server calls: webhooks, and the one check of an address we are told to call."""
