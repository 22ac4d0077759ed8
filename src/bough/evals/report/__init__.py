"""Reports of runs: figures with intervals, comparisons, and report files."""
