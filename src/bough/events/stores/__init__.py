"""The event store implemented: what all databases share, one room a database, and the statements."""
