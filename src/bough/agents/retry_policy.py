"""How often a failed model request is repeated, and how long to wait before each attempt."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bough.errors import InvalidInput


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """The number of attempts for a model request, and the waits between them.

    Attributes:
        attempts: Maximum number of requests, including the first.
        max_seconds: Maximum total of all waits; if the server asks for a longer wait, the request fails at once.
        base_seconds: The first wait; each further wait is twice as long.
        max_wait_seconds: Maximum length of a single wait, unless the server specifies one.
        jitter: Whether each wait is multiplied by a random factor from 0.5 to 1, so that not all clients retry at once.

    Raises:
        InvalidInput: A number is negative or not finite, or `attempts` is less than 1.
    """

    attempts: int = 6
    max_seconds: float = 120.0
    base_seconds: float = 0.5
    max_wait_seconds: float = 60.0
    jitter: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(f"invalid attempts {self.attempts!r}", hint="pass an integer of 1 or more")
        for name in ("max_seconds", "base_seconds", "max_wait_seconds"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise InvalidInput(f"invalid {name} {value!r}", hint="pass a number of seconds, 0 or more")

    def wait_seconds(self, attempt: int, *, retry_after: float | None, random: float) -> float:
        """Return how many seconds to wait after `attempt`, counted from 1, has failed.

        Args:
            retry_after: The wait that the server asks for; with jitter, up to a tenth is added.
            random: A random number from 0 to 1.
        """
        if retry_after is not None:
            # Never shorter than the server asks for: it would refuse the request again.
            return max(retry_after, 0.0) * (1 + (random / 10 if self.jitter else 0))
        doublings = min(attempt - 1, 60)  # 2.0 ** 2000 overflows
        wait = min(self.base_seconds * 2.0**doublings, self.max_wait_seconds)
        return wait * (0.5 + random / 2) if self.jitter else wait
