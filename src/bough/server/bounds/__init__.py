"""Rate limits, quotas and limits of tenants, ids derived from idempotency keys, and preconditions."""
