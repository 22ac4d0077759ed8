"""The review of a project's skills before they are trusted: every file that would run, and the scan's findings."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from bough.errors import Conflict, InvalidInput
from bough.skills.model import Diagnostic, is_skill_file
from bough.skills.read.parse import read_file
from bough.skills.read.resources import suggest_nearest
from bough.skills.run.mcp import list_server_commands
from bough.skills.trust.scan import Scanner
from bough.skills.trust.snapshot import SnapshotStore
from bough.skills.trust.tree import SkillEntry, SkillTree
from bough.skills.trust.trust import SkillGrant, is_code, list_code_files, name_in_project, read_skill_tree


@dataclass(frozen=True)
class SkillReview:
    """A skill with code, as it was when it was reviewed.

    Attributes:
        file: The file that defines the skill.
        key: The path of that file below the project root.
        runs: The files that would run, or configure what runs.
        servers: The commands or addresses of its MCP servers, by name.
        domains: Domains that its servers request (`metadata: {domains: "…"}`).
        findings: The findings of the scan, and the faults of its tree.
    """

    file: Path
    key: str
    tree: SkillTree
    runs: tuple[SkillEntry, ...]
    servers: dict[str, str]
    domains: tuple[str, ...]
    findings: tuple[Diagnostic, ...]

    @property
    def is_refused(self) -> bool:
        """Whether the skill cannot be trusted, because its tree has faults."""
        return bool(self.tree.faults)

    @property
    def has_error_findings(self) -> bool:
        """Whether the scan found an error."""
        return any(finding.severity == "error" for finding in self.findings)

    def grant(self, hosts: Collection[str] = ()) -> SkillGrant:
        """Return the grant for the skill as reviewed; `hosts` are the servers that may run outside the sandbox."""
        return SkillGrant(self.tree.digest, tuple(name for name in self.servers if name in hosts), self.domains)


def review_project(project: Path) -> list[SkillReview]:
    """Return a review of each of the project's skills with code. O(bytes); runs and writes nothing."""
    scanner = Scanner()
    return [review_skill(file, scanner, name_in_project(file, project)) for file in list_code_files(project)]


def review_skill(file: Path, scanner: Scanner, key: str = "") -> SkillReview:
    """Return the review of the skill that `file` defines. O(bytes)."""
    # Hashed before it is read, so that `snapshot_reviewed` detects a change during the review by the digest.
    tree = read_skill_tree(file)
    is_folder = is_skill_file(file.name)
    skill = read_file(file).skill
    findings = scanner.scan_folder(file.parent) if is_folder else scanner.scan_text(_read_text(file), str(file))
    return SkillReview(
        file=file,
        key=key or file.name,
        tree=tree,
        runs=tuple(entry for entry in tree.entries if entry.path != file.name and is_code(file.parent, entry.path)),
        servers={} if skill is None else list_server_commands(skill),
        domains=() if skill is None else read_domains(skill.metadata),
        findings=(*tree.faults, *findings),
    )


def read_domains(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """Return the domains that a skill's servers request, as in `metadata: {domains: "a.example.org *.example.net"}`."""
    return tuple(metadata.get("domains", "").replace(",", " ").split())


def check_hosts(reviews: Collection[SkillReview], hosts: Collection[str]) -> None:
    """Check that each name in `hosts` is an MCP server of a reviewed skill.

    Raises:
        InvalidInput: A name is unknown.
    """
    names = tuple(sorted({name for review in reviews for name in review.servers}))
    for name in hosts:
        if name not in names:
            raise InvalidInput(
                f"no skill here has an MCP server named {name[:80]!r}", hint=suggest_nearest(name, names)
            )


def snapshot_reviewed(reviews: Collection[SkillReview], snapshots: SnapshotStore) -> None:
    """Take snapshots of the reviewed skills, so that exactly the reviewed files are run.

    Raises:
        Conflict: A skill changed during the review.
    """
    for review in reviews:
        if not is_skill_file(review.file.name):
            continue
        # The digest of the copy is compared, because the copy is what runs; the folder may change again.
        if snapshots.take(review.file.parent.resolve()).digest != review.tree.digest:
            raise Conflict(f"{review.file.parent} changed during the review", hint="run the command again")


def _read_text(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""
