"""Tables of the server beside the log: tenants, keys, sealed secrets, webhooks."""
