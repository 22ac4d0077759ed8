"""`bough eval`: the commands for evals."""
