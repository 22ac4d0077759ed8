"""JSON schemas of what `--json` prints. Imported by `bough schema` only, because they need PydanticAI's models."""
