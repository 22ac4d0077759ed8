"""Runs of evals: the plan, the attempts, their result notes, the folder, and going on after a crash."""
