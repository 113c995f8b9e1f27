"""One table of a configuration, and the numbers that stand in it."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class Section(BaseModel):
    """One table of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Simulated(Section):
    """What every simulated population has."""

    outlier_fraction: Fraction = Field(default=0.0, description="share of users who answer as `outlier_kind` says")
    outlier_kind: Literal["shifted", "huge", "nan", "inf", "missing", "zero"] = Field(
        default="shifted", description="what outlier users send"
    )
    seed: Seed = Field(default=0, description="seed of the users (and which are held out), apart from the run's seed")
    silos: Annotated[tuple[Count, ...], Field(min_length=1)] | Count | None = Field(
        default=None,
        description="clients that hold many users each, persons of theirs: how many, or their sizes as a list, which "
        "is public (docs/silos.md). Default: every user has a client of its own",
    )
    silo_sums: bool = Field(
        default=False,
        description="each silo clips its own persons' rows and sends one sum: less to send, and its own persons trust "
        "it with that",
    )
    silos_away: tuple[Count, ...] = Field(
        default=(), description="of a simulation: silos that never answer, by number from 1"
    )
    silos_hostile: tuple[Count, ...] = Field(
        default=(),
        description="of a simulation: silos that send as much as is taken of them, against the others",
    )
