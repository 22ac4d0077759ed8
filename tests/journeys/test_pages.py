"""The how-to pages as a reader follows them: their files, commands and programs, in a fresh home."""

from __future__ import annotations

import json
import re
import shlex
import subprocess

import httpx2
import pydantic_ai
import pytest
from tests.journeys.conftest import BOUGH, ROOT, Person
from tests.journeys.page import Page, run_commands


def test_the_page_about_writing_a_skill_works_as_written(person: Person) -> None:
    page = Page("docs/how-to/write-a-skill.md")
    person.write(page.files)
    done = run_commands(person, *page.commands)
    assert "1 checked, 0 with errors" in done.stdout
    assert "long-lines" in done.stdout.split("checked")[1], "the message is one that it answers"
    assert "2 90" in done.stdout
    person.bough("skills", "check", "long-lines", "--strict", code=1)


@pytest.mark.needs("curl")
def test_the_page_about_serving_works_as_written(person: Person) -> None:
    page = Page("docs/how-to/serve.md")
    (program,) = page.programs
    assert person.python(program).stdout.splitlines() == ["finished", "2 what if idle"]
    command = next(line for line in page.commands[0].splitlines() if "--json" in line).partition("#")[0]
    server = subprocess.Popen(
        [BOUGH, *shlex.split(command)[1:]], cwd=person.folder, env=person.env, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["data"]["url"]
        start, transfer = re.findall(r"```text\n(curl .*?)```", page.text, re.DOTALL)
        create, _, follow = start.partition("\ncurl -s")
        id = json.loads(run_commands(person, create.replace("http://127.0.0.1:8000", url)).stdout)["id"]
        for block in (f"curl -s{follow}", transfer):
            commands = re.sub(r"http://127\.0\.0\.1:800[01]", url, block).replace("$ID", id)
            printed = run_commands(person, commands).stdout
            assert "urn:bough:error:internal" not in printed
            assert 'status":"finished"' in printed, printed
        assert httpx2.get(f"{url}/docs", trust_env=False).status_code == 200
        assert httpx2.get(f"{url}/openapi.json", trust_env=False).status_code == 200
    finally:
        server.terminate()
        server.communicate(timeout=30)
    listed = run_commands(person, page.commands[1]).stdout
    assert re.search(r"^\w{8}  local  ci  write  all scopes  until", listed, re.MULTILINE)


@pytest.mark.slow
def test_the_page_about_pydantic_ai_works_as_written(person: Person) -> None:
    page = Page("docs/how-to/use-with-pydantic-ai.md")
    history, messages = page.programs
    assert '"price":3' in person.python(history).stdout, "the model of the page names a thing that has no price"
    assert "Paris." in person.python(messages).stdout
    (store,) = re.findall(r"```python pydantic-ai>=2\.68\n(.*?)```", page.text, re.DOTALL)
    is_new = tuple(map(int, pydantic_ai.__version__.split(".")[:2])) >= (2, 68)
    done = person.python(store, code=0 if is_new else 1)
    assert "geography" in done.stdout if is_new else "2.68" in done.stderr or "pydantic_ai.conversation" in done.stderr


@pytest.mark.needs("curl")
def test_the_page_about_deploying_works_as_written_without_an_engine(person: Person) -> None:
    page = Page("docs/how-to/deploy.md")
    key_command = next(line for line in page.text.splitlines() if line.startswith("head -c 48")).partition(" && ")[0]
    run_commands(person, key_command)
    compose = (ROOT / "compose.yaml").read_text()
    (serve,) = re.findall(r"^  command: \['(.*bough serve.*)'\]", compose, re.MULTILINE)
    serve = serve.replace("$$", "$").replace("/run/secrets/bough_secret_key", "secret.key").replace("8000", "0")
    refused = person.try_command(["sh", "-c", serve])
    assert refused.code != 0 and "keys create" in refused.output, "it listens on its own loopback until there is a key"
    (create,) = re.findall(r'docker compose run --rm server-1 "(.*)"', page.text)
    key = run_commands(person, create).stdout.strip()
    person.environment["BOUGH_SECRET_KEY"] = (person.folder / "secret.key").read_text().strip()
    with person.serve() as server:
        ask = next(line for line in page.text.splitlines() if line.startswith("curl "))
        run_commands(
            person,
            ask.replace("curl -H", "curl -f -H").replace("$KEY", key).replace("http://127.0.0.1:8001", server.url),
        )
        with server.client(key) as client:
            assert [client.get(path).status_code for path in ("/alive", "/ready")] == [200, 200]
            metrics = client.get("/metrics").text
        for name in re.findall(r"`(bough_\w+)`", page.text.partition("| metric | says |")[2].partition("## ")[0]):
            assert name in metrics, name
