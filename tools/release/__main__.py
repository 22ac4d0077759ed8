"""Check a release: `python -m tools.release [--python 3.11]...`. Publishes nothing."""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from tools.release import checks, materials

ROOT = Path(__file__).parents[2]
OLDEST = "3.11"
NEWEST_MINOR = 14
UV = Path(sys.executable).with_name("uv")
EPOCH = "1700000000"
"""The time of the files in a build, so that two builds can be compared."""


def build(folder: Path) -> tuple[Path, list[str]]:
    """Build the source archive and from it the wheel; then both again from the checkout.

    Returns:
        The wheel, and what is wrong.
    """
    first, second = folder / "first", folder / "second"
    run_uv("build", "--out-dir", first, ROOT)
    run_uv("build", "--sdist", "--wheel", "--out-dir", second, ROOT)
    faults = [
        f"{path.name} differs from a second build"
        for path in sorted(first.iterdir())
        if path.suffix in (".whl", ".gz") and path.read_bytes() != (second / path.name).read_bytes()
    ]
    (wheel,) = first.glob("*.whl")
    return wheel, faults


def run_uv(command: str, *arguments: str | Path) -> None:
    """Run uv with the pinned build tools."""
    constraints = ["--build-constraints", ROOT / "requirements-dev.txt"] if command == "build" else []
    environment = os.environ | {"SOURCE_DATE_EPOCH": EPOCH}
    subprocess.run([UV, *command.split(), "--quiet", *constraints, *arguments], env=environment, check=True)


def find_pythons() -> dict[str, Path]:
    """Return a program for each version of Python from 3.11 on that this machine has."""
    found = dict[str, Path]()
    for minor in range(int(OLDEST.partition(".")[2]), NEWEST_MINOR + 1):
        version = f"3.{minor}"
        for candidate in _list_candidates(version):
            code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
            done = subprocess.run([candidate, "-I", "-c", code], capture_output=True, text=True, check=False)
            if done.stdout.strip() == version:
                found[version] = candidate
                break
    return found


def _list_candidates(version: str) -> Iterator[Path]:
    if f"{sys.version_info.major}.{sys.version_info.minor}" == version:
        yield Path(sys.executable)
    for folder in map(Path, os.environ.get("PATH", "").split(os.pathsep)):
        behind = folder.parent.glob(f"versions/{version}.*/bin/python{version}") if folder.name == "shims" else ()
        yield from (python for python in (*behind, folder / f"python{version}") if python.is_file())


def try_python(python: Path, wheel: Path, folder: Path) -> list[str]:
    """Install a wheel into an empty environment, and use it in an empty home. Return what is wrong."""
    environment = folder / "env"
    run_uv("venv", "--python", python, environment)
    program = environment / "bin" / "python"
    run_uv("pip install", "--python", program, "-c", ROOT / "requirements.txt", wheel)
    home = folder / "home"
    home.mkdir()
    env = {"HOME": str(home), "PATH": f"{environment / 'bin'}:/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
    faults = list[str]()
    for arguments, expected in (
        (["--version"], "bough "),
        (["demo", "demo"], "180 rows, 8 columns"),
        (["init", "project"], "agent.yaml"),
        (["doctor"], "executor"),
        (["conv", "list"], "no conversations"),
    ):
        command = [environment / "bin" / "bough", *arguments]
        done = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, check=False, timeout=300)
        output = done.stdout + done.stderr
        if done.returncode != 0 or expected not in output.replace("No conversations", "no conversations"):
            faults.append(f"bough {' '.join(arguments)} with {python}: exit code {done.returncode}: {output[-400:]}")
    packages = find_packages(environment)
    return [*faults, *checks.check_licenses(packages), *materials.check_files(packages)]


def find_packages(environment: Path) -> Path:
    """Return the folder of the packages of an environment."""
    (packages,) = environment.glob("lib/python*/site-packages")
    return packages


def try_stores(bough: Path, folder: Path) -> Iterator[str]:
    """Open a copy of a store of each older version, list its conversations and fork one. Yield what is wrong."""
    env = {"HOME": str(folder), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
    for dump in sorted((ROOT / "tests" / "golden" / "stores").glob("*.sqlite.sql")):
        store = folder / f"{dump.stem}.db"
        with closing(sqlite3.connect(store)) as connection:
            connection.executescript(dump.read_text("utf-8"))
        use = [bough, "--store", f"sqlite:///{store}", "--json"]
        listed = subprocess.run([*use, "conv", "list", "--all"], env=env, capture_output=True, text=True, check=False)
        ids = [item["id"] for item in json.loads(listed.stdout).get("data", {}).get("conversations", ())]
        if not ids:
            yield f"the store {dump.name} lists no conversations: {listed.stdout[:300]}"
            continue
        forked = subprocess.run([*use, "fork", ids[-1]], env=env, capture_output=True, text=True, check=False)
        if forked.returncode != 0:
            yield f"a conversation of {dump.name} cannot be forked: {forked.stdout[:300]}"


def try_extra(extra: str, python: Path, wheel: Path, folder: Path) -> Iterator[str]:
    """Install the wheel with one extra into an empty environment. Yield what is wrong."""
    environment = folder / f"extra-{extra}"
    program = environment / "bin" / "python"
    run_uv("venv", "--python", python, environment)
    # Without the pins: they are those of the development environment, which `adk` cannot share.
    run_uv("pip install", "--python", program, f"bough[{extra}] @ {wheel.as_uri()}")
    for command in (
        [UV, "pip", "check", "--quiet", "--python", program],
        [environment / "bin" / "bough", "doctor", "--home", folder / "home-of-extras", "--json"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            yield f"{' '.join(map(str, command))}: exit code {done.returncode}: {(done.stdout + done.stderr)[-400:]}"


def check_known_faults(bill: dict[str, object]) -> list[str] | None:
    """Return the advisories about components; None without a database of advisories."""
    database = os.environ.get("BOUGH_ADVISORIES")
    return None if database is None else list(materials.check_advisories(bill, Path(database)))


def main(arguments: Sequence[str]) -> int:
    """Run all checks, print a line for each, and return the exit code."""
    parser = argparse.ArgumentParser(prog="make release-check")
    parser.add_argument("--python", action="append", help="a version to try, such as 3.11; default: each that is there")
    parser.add_argument("--sbom", type=Path, help="a file for the bill of materials (CycloneDX JSON)")
    chosen = parser.parse_args(arguments)
    wanted: list[str] | None = chosen.python
    faults = list(checks.check_versions(ROOT))
    _report("versions", faults)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel, differences = build(folder)
        faults += _report(f"build: {wheel.name}, {wheel.stat().st_size:,} bytes", differences)
        faults += _report("contents", checks.check_wheel(wheel, [f"{ROOT}/", f"{Path.home()}/"]))
        faults += _report("metadata", checks.check_metadata(wheel, ROOT))
        pythons = find_pythons()
        versions = [f"3.{minor}" for minor in range(int(OLDEST.partition(".")[2]), NEWEST_MINOR + 1)]
        tried = [version for version in wanted or versions if version in pythons]
        for version in wanted or versions:
            if version in tried:
                place = folder / version
                place.mkdir()
                faults += _report(f"Python {version}", try_python(pythons[version], wheel, place))
            else:
                print(f"not tried  Python {version}: this machine does not have it")
        if OLDEST not in tried:
            faults += _report("Pythons", [f"Python {OLDEST} must be tried"])
        for version in tried[:1]:
            environment = folder / version / "env"
            faults += _report("older stores", try_stores(environment / "bin" / "bough", folder / version))
            bill = materials.write_bill(find_packages(environment), wheel.name.split("-")[1])
            if chosen.sbom is not None:
                chosen.sbom.write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")
            _report(f"bill of materials: {len(bill['components'])} components", [])
            advisories = check_known_faults(bill)
            if advisories is None:
                print("not tried  advisories: BOUGH_ADVISORIES names no file (a zip file of OSV records of PyPI)")
            else:
                faults += _report("advisories", advisories)
        if wanted is None:
            extras: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
                "optional-dependencies"
            ]
            for extra in extras if tried else ():
                faults += _report(f"extra {extra}", try_extra(extra, pythons[tried[0]], wheel, folder))
        if wanted is None:
            faults += _report("classifiers", checks.check_classifiers(wheel, tried))
    return 1 if faults else 0


def _report(name: str, faults: Iterator[str] | list[str]) -> list[str]:
    """Print the result of a check, and return its faults."""
    faults = list(faults)
    print(f"{'failed' if faults else 'ok':<9}  {name}", flush=True)
    for fault in faults:
        print(f"           {' '.join(fault.split())}", flush=True)
    return faults


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
