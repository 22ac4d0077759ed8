"""The commands, one module or package per noun. Each returns a `Report`, which `main` shows, or an exit code."""
