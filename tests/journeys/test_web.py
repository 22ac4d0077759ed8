"""`bough web`: the page of a local store, for the person at the terminal alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx2

HTML = {"Accept": "text/html"}


def test_the_address_opens_the_page_once_and_enter_prints_another(tmp_path: Path) -> None:
    env = os.environ | {"BOUGH_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    bough = [sys.executable, "-m", "bough.cli.main"]
    subprocess.run([*bough, "run", "say hello"], env=env, cwd=tmp_path, check=True, capture_output=True)
    command = [*bough, "web", "-", "--no-open"]
    with subprocess.Popen(
        command, env=env, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        url = process.stdout.readline().strip()
        base = url.partition("/enter/")[0]
        assert base.startswith("http://127.0.0.1:"), url
        with httpx2.Client(base_url=base, headers=HTML, timeout=60, trust_env=False) as stranger:
            refused = stranger.get("/")
            assert refused.status_code == 401 and "bough web" in refused.text
            assert stranger.get("/api/conversations/search").status_code == 401, "loopback is shared by all users"
        with httpx2.Client(base_url=base, headers=HTML, timeout=60, trust_env=False) as client:
            entered = client.get(url)
            assert entered.status_code == 303 and entered.headers["Location"].startswith("/c/")
            page = client.get("/")
            assert page.status_code == 200 and "say hello" in page.text
            assert client.get("/api/conversations/search").json()["items"][0]["title"] == "say hello"
        with httpx2.Client(base_url=base, headers=HTML, timeout=60, trust_env=False) as late:
            assert late.get(url).status_code == 401, "the address is void once it was opened"
            process.stdin.write("\n")
            process.stdin.flush()
            fresh = process.stdout.readline().strip()
            assert fresh.startswith(base) and fresh != url
            assert late.get(fresh).status_code == 303
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, process.stderr.read()


def test_a_conversation_is_shown_in_a_browser(tmp_path: Path) -> None:
    env = os.environ | {"BOUGH_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        env.pop(name, None)
    bough = [sys.executable, "-m", "bough.cli.main"]
    subprocess.run([*bough, "run", "say hello"], env=env, cwd=tmp_path, check=True, capture_output=True)
    refused = subprocess.run(
        [*bough, "conv", "show", "-", "--web", "--full"], env=env, cwd=tmp_path, capture_output=True
    )
    assert refused.returncode == 2 and b"--web takes the conversation only" in refused.stderr
    with subprocess.Popen(
        [*bough, "conv", "show", "-", "--web"], env=env, cwd=tmp_path, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        assert b"/enter/" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_an_unknown_conversation_is_told_before_anything_is_served(tmp_path: Path) -> None:
    env = os.environ | {"BOUGH_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "bough.cli.main", "web", "0000", "--no-open"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
