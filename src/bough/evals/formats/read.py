"""Detects the format of a path and reads its set. The content of a file never raises: problems become faults."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from bough.errors import InvalidInput, NotFound
from bough.evals.case import CaseSetup
from bough.evals.document import FaultList, SetFile
from bough.evals.eval_set import EvalSet
from bough.types import Json, JsonObject

_HINT = "a skill's folder, an eval set (.json with eval_cases), trigger queries, or a pydantic-evals file (.yaml)"


def read_set(path: str | Path, *, setup: CaseSetup = "chat") -> EvalSet:
    """Return the cases of a file or folder, and its faults.

    Args:
        setup: What attempts at the cases of a JSON eval set need.

    Raises:
        NotFound: The path does not exist.
        InvalidInput: The path has none of the formats.
    """
    file = Path(path)
    if not file.exists():
        raise NotFound(f"{file} does not exist", hint=f"give {_HINT}")
    if file.is_dir():
        return _read_folder(file)
    if file.suffix not in (".json", ".yaml", ".yml"):
        raise InvalidInput(f"{file} is not an eval set", hint=f"give {_HINT}")
    faults = FaultList(file)
    document = SetFile(file, faults)
    data = document.data
    if data is None and faults.found:
        return EvalSet.from_file(document, file.stem, ())
    if _has(data, "eval_cases", "evalCases"):
        from bough.evals.formats.adk import read_adk_set

        return read_adk_set(document, setup=setup)
    if _has(data, "evals") and file.name == "evals.json":
        return _read_folder(file.absolute().parent.parent)
    if isinstance(data, list) and (not data or file.suffix == ".json"):
        return _read_list(document, cast("list[Json]", data), setup)
    if _has(data, "cases"):
        from bough.evals.formats.pydantic import read_pydantic_set

        return read_pydantic_set(document)
    raise InvalidInput(f"{file} has neither `eval_cases` nor `cases`", hint=f"give {_HINT}")


def _read_list(document: SetFile, data: list[Json], setup: CaseSetup) -> EvalSet:
    from bough.evals.formats.adk import is_old_adk_list, read_old_adk_list
    from bough.evals.formats.skill import read_query_file

    return read_old_adk_list(document, setup=setup) if is_old_adk_list(data) else read_query_file(document)


def _read_folder(folder: Path) -> EvalSet:
    if (folder / "SKILL.md").exists() or (folder / "skill.md").exists():
        from bough.evals.formats.skill import read_skill_set

        return read_skill_set(folder)
    if (folder / "task.toml").exists() or any(folder.glob("*/task.toml")):
        raise InvalidInput(f"{folder} holds Harbor tasks", hint=f"`bough eval harbor {folder}` runs them")
    raise InvalidInput(f"{folder} is not a skill", hint=f"give {_HINT}")


def _has(data: Json, *keys: str) -> bool:
    return isinstance(data, dict) and any(key in cast("JsonObject", data) for key in keys)
