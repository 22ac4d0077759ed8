"""The route for the state of the server's machine, for the operator only."""

from __future__ import annotations

from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict

from bough.errors import PermissionDenied
from bough.health import Check, CheckState
from bough.server.access import Admin
from bough.server.auth.caller import LOCAL
from bough.server.requests.routing import router
from bough.server.routes.meta import get_ready

routes = router("Server")


class CheckInfo(BaseModel):
    """The result of one check. `missing` is not an error, because the part is optional."""

    model_config = ConfigDict(from_attributes=True)

    part: str
    name: str
    state: CheckState
    said: str
    fix: str
    essential: bool


class HealthInfo(BaseModel):
    """All checks; `works` is false if something essential is broken or missing."""

    works: bool
    checks: list[CheckInfo]


@routes.get("/api/health")
async def get_machine_health(access: Admin, request: Request, response: Response) -> HealthInfo:
    """Report what works on this machine and how to fix the rest, as `bough doctor` does. For the operator only.

    The rows of conversations are not checked, because that may take long; `bough doctor` checks them.
    """
    if access.caller.tenant != LOCAL:
        raise PermissionDenied(
            "only the operator may read the state of the machine", hint="GET /ready reports whether the server works"
        )
    ready = (await get_ready(request, response))["checks"]
    response.status_code = 200
    server_checks = [
        Check("server", name, "ok" if status == "ok" else "broken", status, essential=True)
        for name, status in ready.items()
    ]
    checks = [*server_checks, *await access.services.health.check()]
    works = not any(check.essential and check.state != "ok" for check in checks)
    return HealthInfo(works=works, checks=[CheckInfo.model_validate(check) for check in checks])
