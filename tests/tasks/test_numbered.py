"""What agentic_patterns gets wrong, by number: where the test is that holds it here.

Source: the list B01 to B38 of seed 004's review.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

_FAULTS = "tests/orchestrator/test_other_faults.py"
_MORE = "tests/orchestrator/test_more_faults.py"
_FAMILY = "tests/tasks/test_family_workers.py"
_STORES = "src/bough/testing/task_store"

PLACES = {
    "B01": (f"{_STORES}/transitions.py", "test_other_transitions_are_rejected"),
    "B02": ("src/bough/testing/dispatcher/contract.py", "test_a_running_task_is_cancelled_by_another_broker"),
    "B03": (f"{_STORES}/records.py", "test_submission_is_one_state_change"),
    "B04": ("tests/tasks/test_broker.py", "test_b04_callbacks_are_told_each_state_once_in_order"),
    "B05": ("tests/tasks/test_broker.py", "test_b05_cancel_all_cancels_pending_tasks_too"),
    "B06": ("tests/tasks/test_broker.py", "test_b06_nothing_runs_on_after_the_broker_is_left"),
    "B07": ("tests/tasks/test_killed_workers.py", "test_tasks_survive_the_death_of_their_workers"),
    "B08": ("tests/tasks/test_workers.py", "test_three_workers_run_each_task_once"),
    "B09": ("tests/tasks/test_json_files.py", "test_b09_torn_and_foreign_files_harm_nothing"),
    "B10": ("tests/tasks/test_broker.py", "test_b10_an_unknown_agent_fails_its_task"),
    "B11": (_FAULTS, "test_b11_the_brokers_model_is_used_where_a_spec_has_none"),
    "B12": (_FAULTS, "test_b12_what_delegate_returned_is_not_announced_again"),
    "B13": (_FAULTS, "test_b13_b14_a_second_wait_waits_for_something_new"),
    "B14": (_FAULTS, "test_b13_b14_a_second_wait_waits_for_something_new"),
    "B15": (f"{_STORES}/transitions.py", "test_results_over_a_mebibyte_are_truncated"),
    "B16": (_FAULTS, "test_b16_both_ways_to_a_result_cost_the_same"),
    "B17": ("tests/tasks/test_shared_bounds.py", "test_b17_siblings_share_what_is_left_of_their_parents_bound"),
    "B18": ("tests/agents/config/test_config.py", "test_what_is_given_wins_over_the_file_for_every_parameter"),
    "B19": ("tests/agents/test_template.py", "test_braces_are_text_with_and_without_catalogues"),
    "B20": ("tests/agents/test_template.py", "test_an_agents_instructions_hold_each_catalogue_once"),
    "B21": (_MORE, "test_b21_a_skill_object_is_activated_without_a_folder"),
    "B22": ("tests/skills/test_registry.py", "test_one_bad_file_harms_no_other"),
    "B23": ("tests/skills/read/test_parse.py", "test_what_cannot_be_a_skill_is_refused_with_the_reason"),
    "B24": ("tests/skills/run/test_scripts.py", "test_every_form_of_arguments_arrives_verbatim"),
    "B25": (_MORE, "test_b25_rules_hold_for_sync_and_async_tools_alike"),
    "B26": (_MORE, "test_b26_every_parameter_of_get_agent_does_what_it_says"),
    "B27": ("tests/orchestrator/test_orchestrator.py", "test_entering_again_goes_on_with_results_that_nobody_saw"),
    "B28": (_FAULTS, "test_b28_a_turn_that_raised_is_in_the_log_and_the_next_goes_on"),
    "B29": (_FAULTS, "test_b29_a_history_is_what_the_next_turns_go_on_with"),
    "B30": (_FAULTS, "test_b30_no_skills_are_none_and_the_spec_stays_as_it_was"),
    "B31": ("tests/tasks/test_json_files.py", "test_b31_no_id_leaves_the_folder"),
    "B32": (f"{_STORES}/records.py", "test_a_returned_task_is_a_copy"),
    "B33": ("tests/tasks/test_broker.py", "test_a_stream_gives_every_event_once_and_ends"),
    "B34": (_FAMILY, "test_a_child_is_answered_on_another_worker_after_both_processes_restarted"),
    "B35": (_MORE, "test_b35_no_timer_stands_between_a_submission_and_its_start"),
    "B36": ("tests/tasks/test_growth.py", "test_a_claim_is_the_same_behind_ten_and_100_000_finished_tasks"),
    "B37": ("src/bough/testing/executor_contract/ending.py", "test_a_timeout_ends_a_program_that_ignores_signals"),
    "B38": (_MORE, "test_b38_nothing_ends_the_program_that_imports_it"),
}  # fmt: skip


def test_every_number_has_a_place() -> None:
    """None of the 38 is left out."""
    assert list(PLACES) == [f"B{number:02d}" for number in range(1, 39)]


@pytest.mark.parametrize("number", PLACES)
def test_each_number_has_its_test(number: str) -> None:
    """A test that is renamed or removed is missed here."""
    path, name = PLACES[number]
    assert f"def {name}(" in (ROOT / path).read_text("utf-8")
