"""The judge: a model that decides whether properties hold, its prompt, its verdicts, and its agreement with people."""
