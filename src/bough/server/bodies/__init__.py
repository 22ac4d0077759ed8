"""Bodies and answers as pydantic models."""
