"""Outgoing requests of the server: webhooks, and the check of their addresses."""
