"""Who asks, and what they may see: callers, keys, origins, the tenant rule."""
