"""Run every benchmark, or those named: `python benchmarks [NAME ...]`. Each runs in a process of its own.

Those in `ON_REQUEST` run only when they are named.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

ON_REQUEST = frozenset({"peers"})
"""What installs packages from the network, and takes minutes."""


def names() -> list[str]:
    """Return the benchmarks there are."""
    return sorted(path.stem for path in HERE.glob("*.py") if path.stem not in {"harness", "__main__"})


def main(wanted: list[str]) -> int:
    """Run the benchmarks and return the exit code: 0, or 1 when one failed, or 2 for a name that is none."""
    unknown = [name for name in wanted if name not in names()]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are: {', '.join(names())}", file=sys.stderr)
        return 2
    chosen = wanted or [name for name in names() if name not in ON_REQUEST]
    failed = [name for name in chosen if subprocess.run([sys.executable, HERE / f"{name}.py"]).returncode != 0]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
