"""Evals of a skill: with it and without it, in the layout that the Agent Skills documentation describes."""
