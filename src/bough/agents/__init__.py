"""Agents: what they are (`spec`), how they are built (`build`), what they can use (`skill_tools`, `models`)."""
