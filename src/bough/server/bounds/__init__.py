"""Rate limits, quotas and limits of tenants, idempotency keys, and preconditions."""
