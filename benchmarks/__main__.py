"""Run every benchmark, or those named: `python benchmarks [NAME ...] [--page FILE]`. Each runs in a process of its own.

Those in `ON_REQUEST` run only when they are named. With `--page` all of them run, and their table is written into the
file; the figures of one table come from one run on one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from harness import Figure
from page import own, rewrite

HERE = Path(__file__).parent

ON_REQUEST = frozenset({"peers", "server_load", "storm"})
"""Benchmarks that take minutes, or install packages from the network."""

_NO_BENCHMARKS = frozenset({"__main__", "agent_servers", "harness", "light_client", "page", "talk", "targets"})


def list_names() -> list[str]:
    """Return the names of all benchmarks."""
    return sorted(path.stem for path in HERE.glob("*.py") if path.stem not in _NO_BENCHMARKS)


def run(name: str) -> tuple[list[Figure], bool]:
    """Run a benchmark, print its lines as they come, and return its figures and whether it succeeded."""
    figures: list[Figure] = []
    with subprocess.Popen([sys.executable, HERE / f"{name}.py"], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            figures.append(Figure(**json.loads(line)))
    return figures, process.returncode == 0


def main(arguments: list[str]) -> int:
    """Run the benchmarks and return the exit code: 0, or 1 when one failed, or 2 for wrong arguments."""
    parser = argparse.ArgumentParser("benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--page", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in list_names()]:
        parser.error(f"no benchmark {', '.join(unknown)}; there are: {', '.join(list_names())}")
    if options.page and options.names:
        parser.error("a page has the figures of all benchmarks, so --page takes no NAME")
    chosen = options.names or [name for name in list_names() if name not in ON_REQUEST]
    before, results = os.getloadavg()[0], {name: run(name) for name in chosen}
    failed = [name for name, (_, succeeded) in results.items() if not succeeded]
    if options.page:
        figures = [figure for measured, _ in results.values() for figure in measured]
        rewrite(options.page, "own figures", own(figures, failed=failed, loads=(before, os.getloadavg()[0])))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
