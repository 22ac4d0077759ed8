"""What routes and protocols do with one conversation: start it, use it, decide on its calls."""
