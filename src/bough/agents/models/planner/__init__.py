"""The rules of the offline planner: what a request shows, which skill fits it, what to call next, what to answer.

`view` reads a model request, `prompt` reads the user's words, `rank` says which skill fits, `plan` decides on the next
call, and `answer` puts results into words. Only `view` knows PydanticAI; the rest are plain functions over plain data.
"""

from bough.agents.models.planner.plan import PlannedCall, Refusal, plan
from bough.agents.models.planner.prompt import mark_folders
from bough.agents.models.planner.view import read_turn

__all__ = ["PlannedCall", "Refusal", "mark_folders", "plan", "read_turn"]
