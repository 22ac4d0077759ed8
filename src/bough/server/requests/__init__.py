"""What every HTTP request passes: bounds, strict routes, refusals as problem documents, the document of all routes."""
