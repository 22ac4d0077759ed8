"""Authentication and access: callers, keys, origins, and the store as one tenant sees it."""
