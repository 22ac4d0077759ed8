"""The judge: a model that decides rubrics, its prompt, its verdicts, and its agreement with people."""
