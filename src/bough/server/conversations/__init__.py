"""The operations of routes and protocols on one conversation: start it, use it, decide on its calls."""
