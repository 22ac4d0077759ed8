"""Run one turn in a terminal: show its progress, ask for approvals, show its result."""
