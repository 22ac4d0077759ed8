"""Evals of a skill: runs with and without it, in the layout of the Agent Skills documentation."""
