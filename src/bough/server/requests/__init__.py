"""Handling of every HTTP request: bounds, strict routes, errors as problem documents, the OpenAPI document."""
