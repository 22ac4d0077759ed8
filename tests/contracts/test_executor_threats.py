"""Attacks on every executor that claims to keep code away from the machine."""

from __future__ import annotations

import os

import pytest

from bough.execution.base import CodeExecutor
from bough.execution.process.cgroup import find_usable_hierarchy
from bough.testing.executor_threats import ExecutorThreats, MountThreats

IS_ROOT = os.geteuid() == 0
WITHOUT_GROUPS = frozenset(() if find_usable_hierarchy() else {"test_memory_bomb_of_pages_that_are_not_mapped"})
"""What is let through where no control group can be made, as for an ordinary user."""

WITH_UID_OF_CALLER = frozenset(() if IS_ROOT else {"test_use_up_the_inotify_instances_of_the_caller"})
"""What is let through where runs have the caller's own uid."""


class TestBubblewrap(ExecutorThreats):
    let_through = WITHOUT_GROUPS | WITH_UID_OF_CALLER

    @pytest.fixture
    def executor(self, bubblewrap: CodeExecutor) -> CodeExecutor:
        return bubblewrap


class TestZygote(ExecutorThreats):
    let_through = WITHOUT_GROUPS.union(
        WITH_UID_OF_CALLER,
        ()
        if IS_ROOT
        else {
            "test_be_root_in_a_folder_of_the_caller",  # uid 0 of its user namespace: the caller's own uid outside
            "test_change_the_first_process",  # which therefore owns the settings of its first process
        },
    )

    @pytest.fixture
    def executor(self, zygote: CodeExecutor) -> CodeExecutor:
        return zygote


@pytest.mark.slow
@pytest.mark.timeout(280)
class TestRaces(MountThreats):
    """Warm, where a round takes some milliseconds; the others do as many with BOUGH_RACE_ROUNDS."""

    rounds = 1000
    seconds = 15.0

    @pytest.fixture
    def executor(self, zygote: CodeExecutor) -> CodeExecutor:
        return zygote


class TestStateful(ExecutorThreats):
    let_through = WITHOUT_GROUPS | WITH_UID_OF_CALLER

    @pytest.fixture
    def executor(self, stateful: CodeExecutor) -> CodeExecutor:
        return stateful


@pytest.mark.slow
class TestContainer(ExecutorThreats):
    let_through = WITH_UID_OF_CALLER

    @pytest.fixture
    def executor(self, container: CodeExecutor) -> CodeExecutor:
        return container


for _name in ("test_swap_a_guarded_name", "test_swap_the_source_of_a_mount"):  # TestContainerRaces has them
    setattr(TestContainer, _name, None)


@pytest.mark.slow
@pytest.mark.timeout(280)
class TestContainerRaces(MountThreats):
    """A container takes half a second to start, so each shows many names."""

    rounds = 1000
    names_at_once = 16
    seconds = 20.0

    @pytest.fixture
    def executor(self, container: CodeExecutor) -> CodeExecutor:
        return container


class TestSandlock(ExecutorThreats):
    let_through = WITHOUT_GROUPS.union(
        {
            "test_system_call_of_another_architecture",  # its own filter kills, which no other can undo
            "test_read_the_first_process",  # it opens files of /proc for the program: its own too, but none of others
        }
    )

    @pytest.fixture
    def executor(self, sandlock: CodeExecutor) -> CodeExecutor:
        return sandlock


class TestWithoutSandbox(ExecutorThreats):
    """The attacks work where nothing stops them; a suite that cannot fail would prove nothing."""

    let_through = frozenset(
        {
            *(("test_be_root_in_a_folder_of_the_caller", "test_open_settings_of_the_kernel") if IS_ROOT else ()),
            "test_read_secrets_on_the_host",
            "test_read_another_process",
            "test_read_connections_and_addresses_of_the_host",
            "test_write_outside",
            "test_change_guarded_names",
            "test_create_guarded_names",
            "test_leave_a_setuid_file_behind",
            "test_reach_a_listener_over_tcp",
            "test_reach_a_listener_over_udp",
            "test_reach_an_abstract_unix_socket",
            "test_make_sockets_of_other_kinds",
            "test_make_the_caller_wait_for_a_lease",
            "test_use_up_the_inotify_instances_of_the_caller",
        }
    )

    @pytest.fixture
    def executor(self, unsafe: CodeExecutor) -> CodeExecutor:
        return unsafe


for _name in dir(ExecutorThreats):
    if _name.startswith("test_") and _name not in TestWithoutSandbox.let_through:
        setattr(TestWithoutSandbox, _name, None)
