"""What a shell command line would do, read from its syntax tree; nothing is ever run."""
