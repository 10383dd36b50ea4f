"""What a measurement was asked to do, and the refusal of requests that make no sense. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import AerieError, ErrorKind

OPTION_INVALID = ErrorKind(
    "accept-option-invalid", "An option has a value with which nothing can be measured."
)
FLOOR_INVALID = ErrorKind(
    "accept-floor-invalid",
    "A floor for the accept length belongs to a step count. With N steps the accept length lies between 1 "
    "and N + 1, so a floor below 1 always passes and one of N + 1 or more never does.",
)


@dataclass(frozen=True)
class MeasureOptions:
    """Times in seconds. ``num_steps`` and ``num_draft_tokens`` None: what the server says.

    soak_requests: how many requests must be answered in all, the measured ones among them; 0 for those alone.
    checks: what else is known of the wiring, to explain a low accept length with (``accept_causes.known_from``).
    """

    num_prompts: int = 24
    concurrency: int = 4
    max_new_tokens: int = 128
    temperature: float = 0.0
    min_tokens: int = 500
    num_steps: int | None = None
    num_draft_tokens: int | None = None
    min_accept_length: float | None = None
    confidence: float = 0.95
    seed: int = 20250101
    request_timeout: float = 120.0
    timeout: float = 600.0
    speculative: bool = True
    checks: Mapping[str, Any] = field(default_factory=dict)
    soak_requests: int = 0

    @property
    def soak_timeout(self) -> float:
        """Seconds for the requests beyond the measured ones: as much for each as for one of those."""
        return self.timeout * max(1.0, (self.soak_requests - self.num_prompts) / self.num_prompts)

    def check(self) -> None:
        """Refuse what can be seen to be wrong without a server."""
        if self.num_steps is not None and self.num_steps < 1:
            raise _invalid("num_steps must be at least 1")
        if self.num_draft_tokens is not None and self.num_draft_tokens < 2:
            raise _invalid("num_draft_tokens must be at least 2 (the last accepted token and one draft)")
        if min(self.num_prompts, self.concurrency) < 1:
            raise _invalid("num_prompts and concurrency must be at least 1")
        if self.max_new_tokens < 2:
            raise _invalid("max_new_tokens must be at least 2: the first token comes from prefill")
        if self.soak_requests < 0:
            raise _invalid("soak_requests cannot be negative")
        if self.min_tokens < 0:
            raise _invalid("min_tokens cannot be negative")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise _invalid("temperature must be 0 or more")
        if not 0.5 <= self.confidence < 1:
            raise _invalid("confidence must be at least 0.5 and below 1, such as 0.95")
        if not (self.request_timeout > 0 and self.timeout > 0):
            raise _invalid("request_timeout and timeout must be above 0")
        if not self.speculative and self.min_accept_length is not None:
            raise FLOOR_INVALID.error(
                "a server without speculation has no accept length to gate",
                evidence=[f"speculative: false, min_accept_length: {self.min_accept_length}"],
                next="leave min_accept_length out for a baseline server",
            )
        check_floor(self.min_accept_length, self.num_steps)


def check_floor(floor: float | None, steps: int | None) -> None:
    """Refuse a floor that can tell nothing at this step count."""
    if floor is None:
        return
    if not floor >= 1.0:
        raise FLOOR_INVALID.error(
            f"min_accept_length {floor} is below 1, which every server reaches",
            next="set a floor between 1 and num_steps + 1",
        )
    if steps is not None and not floor < steps + 1:
        raise FLOOR_INVALID.error(
            f"min_accept_length {floor} cannot be reached with {steps} steps",
            evidence=[
                f"{steps} steps give an accept length of at most {steps + 1}, when every draft is accepted"
            ],
            next=f"set a floor below {steps + 1}, or change the number of steps",
        )


def _invalid(why: str) -> AerieError:
    return OPTION_INVALID.error(why, next="correct the option")
