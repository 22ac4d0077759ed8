"""`--budget` and `bough budgets`: a budget is created, spent, shown, used up and raised on the command line."""

from __future__ import annotations

from typing import Any

import pytest


def test_a_budget_is_spent_used_up_and_raised(cli: Any) -> None:
    assert "no budgets" in cli("budgets").stdout
    assert cli("run", "bake a cake", "--budget", "june=requests:1,tokens:100000").returncode == 0
    stopped = cli("run", "bake a cake", "--budget", "june")
    assert "the budget june is used up: 1 of 1 requests" in stopped.stderr
    assert "raise it with `bough budgets change june`" in stopped.stderr
    assert stopped.returncode not in (0, 1, 2)
    (listed,) = cli.data("budgets", "list")["budgets"]
    assert (listed["id"], listed["remaining"]["requests"], listed["remaining"]["usd"]) == ("june", 0, None)
    raised = cli.data("budgets", "change", "june", "--requests", "3")
    assert raised["bounds"] == {"usd": None, "tokens": 100000, "requests": 3}
    assert cli("resume", "-").returncode == 0
    shown = cli.data("budgets", "show", "june")
    assert shown["spent"]["requests"] == sum(member["spent"]["requests"] for member in shown["members"]) == 2
    records = cli.data("conv", "list")["conversations"]
    assert {member["conversation"] for member in shown["members"]} == {record["id"] for record in records}
    assert "2 requests" in cli("budgets").stdout
    assert records[0]["usage"]["requests"] == 1


def test_a_fork_and_a_task_join_it(cli: Any) -> None:
    assert cli("run", "bake a cake").returncode == 0
    assert cli("fork", "-@1", "bake a pie", "--budget", "june=requests:9").returncode == 0
    assert cli("resume", "-", "and again").returncode == 0, "the fork names its budget"
    assert cli("run", "bake", "--detach", "--budget", "june").returncode == 0
    assert cli("tasks", "wait", "--run", "-").returncode == 0
    shown = cli.data("budgets", "show", "june")
    assert (len(shown["members"]), shown["spent"]["requests"]) == (2, 3)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["run", "x", "--budget", "june="], 2, "is not a budget"),
        (["run", "x", "--budget", "=usd:1"], 2, "is not a budget"),
        (["run", "x", "--budget", "june=usd:1,usd:2"], 2, "is not a budget"),
        (["run", "x", "--budget", "june=cents:1"], 2, "is not a budget"),
        (["run", "x", "--budget", "june=tokens:1.5"], 2, "is not a budget"),
        (["run", "x", "--budget", "june=usd:0"], 2, "above 0"),
        (["run", "x", "--budget", "june=requests:-1"], 2, "above 0"),
        (["run", "x", "--budget", "june=usd:nan"], 2, "above 0"),
        (["run", "x", "--budget", "a b=usd:1"], 2, "invalid id"),
        (["run", "x", "--budget", "june"], 3, "no budget 'june'"),
        (["run", "x", "--budget", "a=usd:1", "--budget", "a=usd:2"], 2, "same id"),
        (["budgets", "show", "june"], 3, "no budget 'june'"),
        (["budgets", "change", "june"], 2, "needs a bound"),
        (["budgets", "change", "june", "--usd", "0"], 2, "above 0"),
        (["conv", "list", "--min-cost-usd", "nan"], 2, "lowest cost"),
        (["conv", "list", "--min-cost-usd", "-1"], 2, "lowest cost"),
        (["conv", "list", "--order", "price"], 2, "no order"),
    ],
)
def test_a_wrong_budget_is_told(cli: Any, arguments: list[str], code: int, says: str) -> None:
    done = cli(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr


def test_conversations_are_listed_by_cost(cli: Any) -> None:
    for prompt in ("bake a cake", "bake a pie"):
        assert cli("run", prompt).returncode == 0
    table = cli("conv", "list", "--order", "cost").stdout
    assert "0.0000 USD" in table
    by_cost = [record["title"] for record in cli.data("conv", "list", "--order", "cost")["conversations"]]
    assert by_cost == ["bake a cake", "bake a pie"]
    assert cli.data("conv", "list", "--min-cost-usd", "0.01")["conversations"] == []
    assert "no conversation matches" in cli("conv", "list", "--min-cost-usd", "0.01").stdout
