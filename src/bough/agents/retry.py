"""How often, and after which waits, a model is asked again when it failed for a while."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bough.errors import InvalidInput


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Repeats of one request.

    Attributes:
        attempts: Requests in all, the first one included.
        max_seconds: All waits of one request together; a server that wants a longer wait ends the attempts at once.
        base_seconds: The first wait; each further one is twice as long.
        max_wait_seconds: One wait, where the server does not say how long.
        jitter: Wait between half and all of that, at random, so that many clients do not come back together.

    Raises:
        InvalidInput: A number is negative, not finite, or there is not one attempt.
    """

    attempts: int = 6
    max_seconds: float = 120.0
    base_seconds: float = 0.5
    max_wait_seconds: float = 60.0
    jitter: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(f"attempts cannot be {self.attempts!r}", hint="give a whole number, 1 or more")
        for name in ("max_seconds", "base_seconds", "max_wait_seconds"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise InvalidInput(f"{name} cannot be {value!r}", hint="give a number of seconds, 0 or more")

    def wait_seconds(self, attempt: int, *, retry_after: float | None, random: float) -> float:
        """Return how long to wait after `attempt` (from 1) has failed.

        Args:
            retry_after: What the server asks for; it is a minimum, to which up to a tenth is added.
            random: Between 0 and 1.
        """
        if retry_after is not None:
            return max(retry_after, 0.0) * (1 + (random / 10 if self.jitter else 0))
        doublings = min(attempt - 1, 60)  # 2.0 ** 2000 overflows
        wait = min(self.base_seconds * 2.0**doublings, self.max_wait_seconds)
        return wait * (0.5 + random / 2) if self.jitter else wait
