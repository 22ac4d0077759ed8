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

ON_REQUEST = frozenset({"peers", "server_load"})
"""What takes minutes, or installs packages from the network."""

_NO_BENCHMARKS = frozenset({"__main__", "agent_servers", "harness", "light_client", "page", "talk", "targets"})


def names() -> list[str]:
    """Return the benchmarks there are."""
    return sorted(path.stem for path in HERE.glob("*.py") if path.stem not in _NO_BENCHMARKS)


def run(name: str) -> tuple[list[Figure], bool]:
    """Run a benchmark, print its lines as they come, and return its figures and whether it came to its end."""
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
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.names if name not in names()]:
        parser.error(f"no benchmark {', '.join(unknown)}; there are: {', '.join(names())}")
    if given.page and given.names:
        parser.error("a page has the figures of all benchmarks, so --page takes no NAME")
    chosen = given.names or [name for name in names() if name not in ON_REQUEST]
    before, results = os.getloadavg()[0], {name: run(name) for name in chosen}
    failed = [name for name, (_, ended) in results.items() if not ended]
    if given.page:
        figures = [figure for found, _ in results.values() for figure in found]
        rewrite(given.page, "own figures", own(figures, failed=failed, loads=(before, os.getloadavg()[0])))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
