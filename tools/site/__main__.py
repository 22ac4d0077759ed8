"""Build the documentation site: `python -m tools.site [SITE]`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.site import api, commands, llms, navigation, pages


def build(site: Path) -> None:
    """Build the site into a folder, which is replaced. Opens no connection.

    Raises:
        SystemExit: A page links to a file that the site does not have, or Zensical warns.
    """
    with tempfile.TemporaryDirectory() as name:
        project = Path(name)
        content = pages.read_pages(pages.ROOT)
        content |= commands.render_commands() | api.render_api()
        for path, text in content.items():
            target = project / "docs" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, "utf-8")
        shutil.copytree(Path(__file__).parent / "assets", project / "docs" / "assets")
        (project / "docs" / "pictures").mkdir()
        for picture in pages.list_pictures(pages.ROOT):
            shutil.copy(picture, project / "docs" / "pictures")
        tree = navigation.read_navigation(pages.ROOT, content)
        (project / "mkdocs.yml").write_text(navigation.write_configuration(tree), "utf-8")
        command = [Path(sys.executable).with_name("zensical"), "build", "--strict", "--clean"]
        subprocess.run(command, cwd=project, env=os.environ | {"NO_COLOR": "1"}, check=True)
        llms.write_texts(tree, content, project / "site")
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(project / "site", site)


if __name__ == "__main__":
    destination = Path(sys.argv[1] if len(sys.argv) > 1 else "site")
    try:
        build(destination)
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"the site was not built: {' '.join(map(str, error.cmd))} failed") from error
    print(f"Wrote {destination}/index.html")
