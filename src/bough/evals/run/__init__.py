"""Runs of evals: the plan, the attempts, their result notes, the folder, and continuing after a crash."""
