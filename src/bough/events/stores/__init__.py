"""Implementations of the event store: the code that all databases share, one package a database, and the SQL."""
