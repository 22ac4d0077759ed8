"""Delivery of pending tasks to workers."""
