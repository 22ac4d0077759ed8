"""`bough skills trust`: trusts the code of a project's skills after a review."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bough.cli import options
from bough.cli.commands.skills.look import diagnostic_lines, require_folder
from bough.cli.render import Report, renderer_for
from bough.cli.text import Line, line
from bough.errors import InvalidInput, PermissionDenied

if TYPE_CHECKING:
    from bough.skills.install.review import SkillReview


def trust(
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="Project folder. Default: the working folder.")
    ] = None,
    workspace: options.Workspace = Path(),
    revoke: Annotated[bool, typer.Option("--revoke", help="Revoke trust in this project.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be trusted.")] = False,
    host_servers: Annotated[
        list[str] | None,
        typer.Option("--host-servers", metavar="NAME", help="Run this MCP server outside the sandbox; repeatable."),
    ] = None,
    host_hooks: Annotated[
        bool, typer.Option("--host-hooks", help="Run the project's hooks outside the sandbox.")
    ] = False,
    accept_findings: Annotated[
        bool, typer.Option("--accept-findings", help="Also trust skills in which the scan found errors.")
    ] = False,
    rules: Annotated[
        bool, typer.Option("--rules", help="Also follow rule files (AGENTS.md) that a tool wrote.")
    ] = False,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Trust a project's current skills, hooks and config.yaml.

    Shows every file that would run, the MCP servers, and the findings of the scan.
    """
    from bough.agents.config.code import digest_project_configs, list_code_files
    from bough.guard.hook_trust import list_project_hooks, trust_hooks
    from bough.skills import TrustStore
    from bough.skills.find.rule_files import read_rules
    from bough.skills.install.review import check_hosts, review_project, snapshot_reviewed
    from bough.skills.trust.snapshot import SnapshotStore

    settings = options.load_settings(home, store)
    trust_store = TrustStore(settings.home)
    folder = require_folder(workspace if directory is None else directory)
    if revoke:
        return _report_revoked(trust_store.revoke(folder))
    hook_files = [hook_file for hook_file in list_project_hooks(folder) if hook_file.digest]
    files = {hook_file.key: hook_file.digest for hook_file in hook_files}
    files |= digest_project_configs(folder)
    if rules:
        rule_files, _ = read_rules(folder)
        files |= {rule.name: rule.content_hash for rule in rule_files}
    reviews = review_project(folder)
    hosts = tuple(host_servers or ())
    # Checked before anything is trusted, because a server with a misspelt name would silently run in the sandbox.
    check_hosts(reviews, hosts)
    output = list(_list_reviews(reviews, hosts)) + [line((name, "id")) for name in files]
    if hook_files and host_hooks:
        output.append(line("  ", ("hooks run on this machine, outside the sandbox", "warn")))
    elif hook_files:
        output.append(line("  ", ("hooks run in the sandbox", "dim")))
    output += [
        line(("  runs on this machine, outside the sandbox  ", "warn"), path) for path in list_code_files(folder)
    ]
    verified = [review for review in reviews if not review.is_refused]
    names = sorted([*(review.key for review in verified), *files])
    data: dict[str, Any] = {
        "trusted": [],
        "found": names,
        "skills": [_review_json(review, hosts) for review in reviews],
    }
    if dry_run or not (reviews or files):
        nothing_found = line(("no code or hooks to trust in this project", "dim"))
        return Report(command="skills trust", data=data, blocks=output or [nothing_found])
    # Errors in one skill prevent trust in all, because the user trusts the project as a whole.
    faulty = [review for review in verified if review.has_error_findings and not accept_findings]
    if faulty:
        raise PermissionDenied(
            f"the scan found errors in {', '.join(review.key for review in faulty)}; nothing was trusted",
            hint="review them with `bough skills trust --dry-run`, or pass --accept-findings",
            details={"skills": [_review_json(review, hosts) for review in faulty]},
        )
    if names:
        _confirm(output, yes=yes, json=json)
        # Copied before trust is recorded, because a skill with a trusted digest runs only from its copy.
        snapshots = SnapshotStore(settings.home / "snapshots")
        snapshot_reviewed(verified, snapshots)
        trust_hooks(folder, hook_files, home=settings.home, trust=trust_store, on_host=host_hooks)
        trust_store.trust(folder, other_files=files, skills={review.key: review.grant(hosts) for review in verified})
        snapshots.collect(trust_store.digests())
    refused = [review for review in reviews if review.is_refused]
    blocks = [line((name, "id"), "  trusted") for name in names]
    blocks += [output_line for review in refused for output_line in _list_refusal(review)]
    exit_code = PermissionDenied("").exit_code if refused else 0
    return Report(command="skills trust", data=data | {"trusted": names}, blocks=blocks, exit_code=exit_code)


def _report_revoked(was_trusted: bool) -> Report:
    text = "trust in this project revoked" if was_trusted else "this project was not trusted"
    return Report(command="skills trust", data={"revoked": was_trusted}, blocks=[line(text)])


def _confirm(output: Sequence[Line], *, yes: bool, json: bool) -> None:
    """Show the review and ask whether to trust the project.

    Raises:
        InvalidInput: There is no terminal for the question, or the answer is no.
    """
    if yes:
        return
    if json or not sys.stdin.isatty():
        raise InvalidInput("no terminal to ask on", hint="see `bough skills trust --dry-run`, then pass --yes")
    renderer = renderer_for(json=False)
    for output_line in output:
        renderer.note(output_line)
    if not typer.confirm("Let these skills run their code in the sandbox?", err=True):
        raise InvalidInput("no skills trusted", hint="run again to trust them")


def _list_reviews(reviews: Sequence[SkillReview], hosts: Sequence[str]) -> Iterator[Line]:
    for review in reviews:
        yield line((review.key, "id"))
        for entry in review.runs:
            mode = "x" if entry.executable else "-"
            yield line(("  runs  ", "dim"), entry.path, (f"  {entry.size} bytes  {mode}", "dim"))
        for name, command in review.servers.items():
            if name in hosts:
                yield line((f"  runs on this machine, outside the sandbox: {command}", "warn"))
            else:
                yield line(("  MCP server  ", "dim"), name, (f"  in the sandbox: {command}", "dim"))
        if review.domains:
            yield line(("  reaches  ", "dim"), " ".join(review.domains))
        for finding in review.findings:
            yield from diagnostic_lines(finding, file=str(review.file))


def _list_refusal(review: SkillReview) -> Iterator[Line]:
    yield line((review.key, "id"), ("  not trusted: it cannot be verified", "bad"))
    for fault in review.tree.faults:
        yield from diagnostic_lines(fault)


def _review_json(review: SkillReview, hosts: Sequence[str]) -> dict[str, Any]:
    return {
        "path": review.key,
        "digest": review.tree.digest,
        "refused": review.is_refused,
        "runs": [{"path": item.path, "size": item.size, "executable": item.executable} for item in review.runs],
        "servers": [
            {"name": name, "command": command, "place": "host" if name in hosts else "sandbox"}
            for name, command in review.servers.items()
        ],
        "domains": list(review.domains),
        "diagnostics": [item.as_dict() for item in review.findings],
    }
