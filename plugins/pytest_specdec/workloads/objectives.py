"""What a request must reach to count as well served: service level objectives (SLOs), in milliseconds."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

_Milliseconds = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


class Objectives(BaseModel):
    """Longest times that a request may take; those that are None are not asked. See docs/measurements.md for each."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ttft_ms: _Milliseconds | None = Field(
        default=None, description="a number of milliseconds above 0", examples=["ttft_ms = 200"]
    )
    tpot_ms: _Milliseconds | None = Field(
        default=None, description="a number of milliseconds above 0", examples=["tpot_ms = 30"]
    )
    e2e_ms: _Milliseconds | None = Field(
        default=None, description="a number of milliseconds above 0", examples=["e2e_ms = 2000"]
    )

    @property
    def asked(self) -> dict[str, float]:
        """Those that are asked, by key."""
        return {key: float(limit) for key, limit in self.model_dump().items() if limit is not None}
