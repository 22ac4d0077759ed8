"""The commands, one file a noun. Each function takes arguments and returns a `Report`; `main` shows it."""
