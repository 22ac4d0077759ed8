"""The bytes that events name by their digest."""
