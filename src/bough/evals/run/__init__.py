"""Runs of evals: the plan, the attempts, their result notes, the folder, and resuming after a crash."""
