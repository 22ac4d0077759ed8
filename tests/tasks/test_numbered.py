"""What agentic_patterns gets wrong, by number: where the test is that holds it here.

Source: the list B01 to B38 of seed 004's review. Numbers that stores, dispatch and workers have to do with are here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PLACES = {
    "B01": ("src/bough/testing/task_store/transitions.py", "test_everything_else_is_refused"),
    "B02": ("src/bough/testing/dispatcher/contract.py", "test_a_running_task_is_cancelled_by_another_broker"),
    "B03": ("src/bough/testing/task_store/records.py", "test_submission_is_one_state_change"),
    "B04": ("tests/tasks/test_broker.py", "test_b04_callbacks_are_told_each_state_once_in_order"),
    "B05": ("tests/tasks/test_broker.py", "test_b05_cancel_all_cancels_pending_tasks_too"),
    "B06": ("tests/tasks/test_broker.py", "test_b06_nothing_runs_on_after_the_broker_is_left"),
    "B07": ("tests/tasks/test_killed_workers.py", "test_tasks_survive_the_death_of_their_workers"),
    "B08": ("tests/tasks/test_workers.py", "test_three_workers_run_each_task_once"),
    "B09": ("tests/tasks/test_json_files.py", "test_b09_torn_and_foreign_files_harm_nothing"),
    "B10": ("tests/tasks/test_broker.py", "test_b10_an_unknown_agent_fails_its_task"),
    "B15": ("src/bough/testing/task_store/transitions.py", "test_long_results_are_whole_up_to_a_mebibyte"),
    "B31": ("tests/tasks/test_json_files.py", "test_b31_no_id_leaves_the_folder"),
    "B32": ("src/bough/testing/task_store/records.py", "test_what_is_returned_is_a_copy"),
    "B33": ("tests/tasks/test_broker.py", "test_a_stream_gives_every_event_once_and_ends"),
    "B36": ("tests/tasks/test_growth.py", "test_a_claim_is_the_same_behind_ten_and_100_000_finished_tasks"),
}


@pytest.mark.parametrize("number", PLACES)
def test_each_number_has_its_test(number: str) -> None:
    """A test that is renamed or removed is missed here."""
    path, name = PLACES[number]
    assert f"def {name}(" in (ROOT / path).read_text("utf-8")
