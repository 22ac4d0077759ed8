"""Taking in skills from elsewhere, and making new ones."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import os
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bough.errors import BoughError, Conflict, ConnectError, InvalidInput, LimitExceeded, NotFound
from bough.skills import SkillRegistry, read_skill
from bough.skills.install import install as install_module
from bough.skills.install import listing as listing_module
from bough.skills.install.install import Installation, InstallRequest
from bough.skills.new import new_skill
from bough.skills.trust.lock import read_lock, verify_lock


def install(source: str, target: Path, **options: object) -> Installation:
    return install_module.install(InstallRequest(source=source, **options), target)  # type: ignore[arg-type]


def names_of(installation: Installation) -> list[str]:
    return [each.name for each in installation.installed]


def folder_of(target: Path, name: str) -> Path:
    (found,) = target.glob(f"*/{name}")
    return found


def text(name: str, description: str = "Does a thing.") -> str:
    return f"---\nname: {name}\ndescription: {description}\n---\nDo it.\n"


@pytest.fixture
def library(tmp_path: Path) -> Path:
    root = tmp_path / "library"
    for name in ("alpha", "beta"):
        (root / "skills" / name / "scripts").mkdir(parents=True)
        (root / "skills" / name / "SKILL.md").write_text(text(name))
        (root / "skills" / name / "scripts" / "a.sh").write_text("echo hi\n")
        (root / "skills" / name / "scripts" / "a.sh").chmod(0o755)
    return root


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "installed"


def zip_of(entries: dict[str, str | bytes], modes: dict[str, int] | None = None) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in entries.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (modes or {}).get(name, 0o100644) << 16
            archive.writestr(info, content)
    return out.getvalue()


def test_from_a_folder_with_a_lock_and_its_source(library: Path, target: Path) -> None:
    done = install(str(library), target)

    assert names_of(done) == ["alpha", "beta"]
    assert (folder_of(target, "alpha") / "scripts" / "a.sh").read_text() == "echo hi\n"
    assert os.access(folder_of(target, "alpha") / "scripts" / "a.sh", os.X_OK)
    assert verify_lock(target) == []
    assert {each.source for each in read_lock(target / "skills.lock")} == {str(library)}
    assert not (target / ".staging").exists()
    registry = SkillRegistry()
    assert [skill.name for skill in registry.discover([target])] == ["alpha", "beta"]


def test_one_by_name_and_replacing_only_when_asked(library: Path, target: Path) -> None:
    install(str(library), target, names=["beta"])
    assert [path.name for path in target.glob("*/*")] == ["beta"]
    with pytest.raises(Conflict):
        install(str(library), target)
    assert not list(target.glob("*/alpha"))
    (library / "skills" / "beta" / "SKILL.md").write_text(text("beta", "Changed."))
    install(str(library), target, replace=True)
    assert read_skill(folder_of(target, "beta")).description == "Changed."
    assert verify_lock(target) == []
    with pytest.raises(NotFound, match="gamma"):
        install(str(library), target, names=["gamma"], replace=True)


def test_from_archives(tmp_path: Path, target: Path) -> None:
    (tmp_path / "a.zip").write_bytes(zip_of({"pack/zipped/SKILL.md": text("zipped"), "pack/zipped/x/y": "1"}))
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        info = tarfile.TarInfo("./tarred/SKILL.md")
        info.size = len(text("tarred"))
        archive.addfile(info, io.BytesIO(text("tarred").encode()))
    assert names_of(install(str(tmp_path / "a.zip"), target)) == ["zipped"]
    assert names_of(install(str(tmp_path / "a.tar.gz"), target)) == ["tarred"]
    assert sorted(each.name for each in read_lock(target / "skills.lock")) == ["tarred", "zipped"]


@pytest.mark.parametrize(
    "archive",
    [
        zip_of({"../out/SKILL.md": text("out")}),
        zip_of({"/abs/SKILL.md": text("abs")}),
        zip_of({"a\\b/SKILL.md": text("b")}),
        zip_of({"C:/x/SKILL.md": text("x")}),
        zip_of({"x/SKILL.md": text("x"), "x/link": "/etc/passwd"}, {"x/link": 0o120777}),
        zip_of({"x/SKILL.md": text("Bad Name")}),
        zip_of({"x/SKILL.md": ""}),
        zip_of({"t/SKILL.md": text("t"), "t/a": "1", "t/a/b": "2"}),
        zip_of({"t/SKILL.md": text("t"), "t/a/b": "2", "t/a": "1"}),
        zip_of({"t/SKILL.md": text("t"), "t/A.md": "1", "t/a.md": "2"}),
        b"no archive at all",
    ],
)  # fmt: skip
def test_archives_that_are_refused_leave_nothing_behind(tmp_path: Path, target: Path, archive: bytes) -> None:
    (tmp_path / "a.zip").write_bytes(archive)
    with pytest.raises(InvalidInput):
        install(str(tmp_path / "a.zip"), target)
    assert list(target.iterdir()) == []
    assert not (tmp_path / "out").exists()


def test_links_of_an_archive_are_refused_and_those_out_of_a_folder_are_named(
    tmp_path: Path, library: Path, target: Path
) -> None:
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as archive:
        link = tarfile.TarInfo("x/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(InvalidInput):
        install(str(tmp_path / "a.tgz"), target)
    (library / "skills" / "alpha" / "link").symlink_to("/etc/passwd")
    done = install(str(library), target)
    assert "link-out" in {note.code for note in done.installed[0].diagnostics}
    assert not (done.installed[0].folder / "link").is_symlink()


def test_an_archive_that_grows_beyond_bounds_is_refused(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing_module, "MAX_BYTES", 1 << 20)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/SKILL.md", text("x"))
        archive.writestr("x/bomb", b"\0" * (3 << 20))
    (tmp_path / "a.zip").write_bytes(out.getvalue())
    with pytest.raises(LimitExceeded):
        install(str(tmp_path / "a.zip"), target)


def git(place: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main", *arguments]
    return subprocess.run(command, cwd=place, check=True, capture_output=True, text=True).stdout.strip()


def test_from_git_at_a_commit(library: Path, target: Path) -> None:
    git(library, "init", "-q")
    git(library, "config", "uploadpack.allowAnySHA1InWant", "true")
    git(library, "add", ".")
    git(library, "commit", "-q", "-m", "one")
    first = git(library, "rev-parse", "HEAD")
    (library / "skills" / "alpha" / "SKILL.md").write_text(text("alpha", "Later."))
    git(library, "commit", "-q", "-am", "two")

    install(f"file://{library}@{first}", target)

    assert read_skill(folder_of(target, "alpha")).description == "Does a thing."
    assert {each.source for each in read_lock(target / "skills.lock")} == {f"file://{library}"}
    assert {each.commit for each in read_lock(target / "skills.lock")} == {first}
    with pytest.raises(ConnectError):
        install(f"file://{library}@{'0' * 40}", target, replace=True)
    with pytest.raises(InvalidInput):
        install(f"ext::sh -c id@{first}", target, replace=True)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    root = tmp_path / "site"
    (root / ".well-known" / "agent-skills").mkdir(parents=True)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(root))  # type: ignore[arg-type]

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", root / ".well-known" / "agent-skills"
    server.shutdown()
    thread.join()
    server.server_close()


def entry(name: str, kind: str, url: str, content: bytes) -> dict[str, str]:
    return {
        "name": name,
        "type": kind,
        "description": "x",
        "url": url,
        "digest": f"sha256:{hashlib.sha256(content).hexdigest()}",
    }


def test_from_a_site_with_digests(site: tuple[str, Path], target: Path) -> None:
    address, root = site
    single, archive = text("single").encode(), zip_of({"SKILL.md": text("packed"), "scripts/a.sh": "x"})
    (root / "single").mkdir()
    (root / "single" / "SKILL.md").write_bytes(single)
    (root / "packed.zip").write_bytes(archive)
    skills = [entry("single", "skill-md", "single/SKILL.md", single), entry("packed", "archive", "packed.zip", archive)]
    (root / "index.json").write_text(json.dumps({"$schema": "x", "skills": skills}))

    assert names_of(install(address, target)) == ["packed", "single"]
    assert (folder_of(target, "packed") / "scripts" / "a.sh").read_text() == "x"

    (root / "packed.zip").write_bytes(archive + b"x")
    with pytest.raises(InvalidInput, match="digest"):
        install(address, target, replace=True)
    assert verify_lock(target) == []


@pytest.mark.parametrize(
    "index",
    [
        "{",
        "[]",
        '{"skills": [{}]}',
        '{"skills": [{"name": "../x", "type": "skill-md", "url": "x", "digest": "sha256:%s"}]}' % ("0" * 64),
        '{"skills": [{"name": "x", "type": "skill-md", "url": "x", "digest": "md5:1"}]}',
    ],
)
def test_an_index_that_is_none_is_refused(site: tuple[str, Path], target: Path, index: str) -> None:
    address, root = site
    (root / "index.json").write_text(index)
    with pytest.raises(InvalidInput):
        install(f"{address}/.well-known/agent-skills/index.json", target)


@pytest.mark.parametrize("source", ["http://example.org", "/absent/folder", "https://127.0.0.1:1/x.json", ""])
def test_sources_that_are_none(tmp_path: Path, target: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(BoughError):
        install(source, target)


@pytest.mark.parametrize("script", [True, False])
def test_a_new_skill_passes_the_specification(tmp_path: Path, script: bool) -> None:
    file = new_skill(tmp_path, "my-skill", description='Says "a: b" \\ # c\n* over lines: é', script=script)
    skill = read_skill(file, "strict")
    assert (skill.name, skill.description) == ("my-skill", 'Says "a: b" \\ # c * over lines: é')
    assert [each.severity for each in skill.diagnostics] == []
    assert skill.resources.scripts == (("scripts/main.py",) if script else ())
    with pytest.raises(Conflict):
        new_skill(tmp_path, "my-skill", description="x")


@pytest.mark.parametrize(
    ("name", "description"), [("Bad", "x"), ("../x", "x"), ("x", " "), ("x", "y" * 1025), ("", "x")]
)
def test_a_new_skill_needs_a_good_name_and_a_description(tmp_path: Path, name: str, description: str) -> None:
    with pytest.raises(InvalidInput):
        new_skill(tmp_path, name, description=description)
