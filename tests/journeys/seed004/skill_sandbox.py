"""A skill's script in the sandbox: it sees its skill's folder read-only."""

from pathlib import Path

from bough.skills import SkillRegistry, create_skill_sandbox_manager, run_skill_script

folder = Path("skills/code-review")
(folder / "scripts").mkdir(parents=True)
(folder / "SKILL.md").write_text("---\nname: code-review\ndescription: Review code.\n---\nRun scripts/analyze.py.\n")
(folder / "scripts/analyze.py").write_text(
    """import sys
from pathlib import Path

print("analyzed", *sys.argv[1:])
try:
    Path(__file__).write_text("changed")
except OSError:
    print("read-only")
    sys.exit(3)
"""
)

registry = SkillRegistry()
registry.discover([Path("skills/")])
manager = create_skill_sandbox_manager(registry)
exit_code, output = run_skill_script(
    manager, registry, "user", "session", skill_name="code-review", script_name="analyze.py", args="main.py"
)
print(exit_code, output)
exit_code, output = run_skill_script(
    manager, registry, "user", "session", skill_name="code-review", script_name="missing.py"
)
print(exit_code, output)
