"""Reports of runs: numbers with their intervals, comparisons, and the files they are written to."""
