"""What a coordinator announces of a run: the terms to which a client may agree, checked before they are believed."""

from hashlib import blake2b, sha256
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from quoron_client.data.encoding import Encoding
from quoron_client.federation.client_state import Agreement
from quoron_client.federation.config import PUBLIC_PARTICIPATION, TWO_SERVERS, Limits
from quoron_client.losses import Loss, make_loss
from quoron_client.protocol.domains import Box, Domain, L2Ball
from quoron_client.protocol.wire import MAX_DESCRIPTION, MAX_NAME, replace_one
from quoron_privacy.errors import ConfigError, QuoronError, WireError
from quoron_protos.v1 import federation_pb2 as federation

Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, lt=2**31)]


class Promised(BaseModel):
    """What is announced of every run, whatever is computed on anybody's items.

    Unknown keys are left alone: a later coordinator may say more.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    run: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    algorithm: str
    statement: str  # the promise in one sentence
    theorem: str = ""  # where it is proved
    epsilon: Annotated[float, Field(ge=0)]  # inf without privacy
    delta: Annotated[float, Field(ge=0, le=1)]
    adjacency: Literal["replace-one", "zero-out", "none"]
    trust_model: Literal["central-release", "central-broadcast", "two-servers", "local", "none"]
    rounds: Count
    participations: Count  # at most so many answers of one user
    dimension: Count  # of the model
    simulation: bool = False
    silo_sums: bool = False  # silos may be asked for sums of their persons' rows
    participation: Literal["private", "public"] = "private"  # public: whether this client answers is public, by name
    seconds: Positive | None = None  # that a round takes answers, where that says when a client sends its own

    @model_validator(mode="after")
    def _timely(self) -> Self:
        if self.public and (self.seconds is None or self.adjacency == "zero-out" or self.trust_model == "local"):
            raise ValueError(
                "to be neither zero-out nor of trust model local, and to say its seconds, with public participation"
            )
        if self.masked and self.seconds is None:
            raise ValueError("to say its seconds, with two servers")
        return self

    @classmethod
    def read(cls, run: str, description: str) -> Self:
        """Return the terms in an announcement of `run`. Raises WireError for anything else."""
        if len(description) > MAX_DESCRIPTION:
            raise WireError(
                f"Expected a description of at most {MAX_DESCRIPTION:,} characters, got {len(description):,}."
            )
        try:
            terms = cls.model_validate_json(description)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            place = ".".join(str(step) for step in first["loc"])
            said = first["msg"].removeprefix("Value error, ").rstrip(".")
            raise WireError(
                f"Expected a usable description of the run, got {f'{place}: {said}' if place else said}."
            ) from None
        except ConfigError as error:
            raise WireError(f"Expected a usable description of the run, got columns: {error}") from None
        if terms.run != run:
            raise WireError("Expected the description of the announced run, got that of another.")
        return terms

    @property
    def public(self) -> bool:
        """Whether it is public who answers."""
        return self.participation == "public"

    @property
    def masked(self) -> bool:
        """Whether two servers see halves of answers, neither of them an answer."""
        return self.trust_model == TWO_SERVERS

    @property
    def timely(self) -> bool:
        """Whether nothing but an answer's values may depend on items: not its time, nor that it comes."""
        return self.public or self.masked


class Terms(Promised):
    """The public description of a run of a loss of ours on rows of a table."""

    loss: dict[str, str | Number]  # "name", and the bounds of `make_loss`
    domain: dict[Literal["l2-ball", "box"], Positive]
    columns: Encoding  # how rows of a table become items

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if len(self.domain) != 1:
            raise ValueError("to have one domain")
        if any(isinstance(value, str) != (name == "name") for name, value in self.loss.items()):
            raise ValueError("to have a loss with a name and with numbers as its bounds")
        try:
            self.make_domain()
            self.columns.check_loss(self.make_loss())
            made = self.columns.dimension
        except QuoronError as error:
            raise ValueError(str(error)) from None
        loss = self.make_loss()
        if self.dimension % loss.outputs:
            raise ValueError(f"to have a dimension that is a multiple of the {loss.outputs} classes of its loss")
        if made != self.features:
            raise ValueError(f"columns that become {made} features, not {self.features} as announced")
        return self

    def make_loss(self) -> Loss:
        """Return the loss with its public bounds."""
        bounds: dict[str, Any] = {name: value for name, value in self.loss.items() if name != "name"}
        return make_loss(str(self.loss.get("name")), **bounds)

    @property
    def features(self) -> int:
        """Features of an item."""
        return self.dimension // self.make_loss().outputs

    def make_domain(self) -> Domain:
        """Return the set that models live in."""
        ((kind, size),) = self.domain.items()
        return L2Ball(size) if kind == "l2-ball" else Box(size)


# What the owner's account of a run has of its announcement.
PROMISED = set(Promised.model_fields) - {"run", "participations", "dimension", "silo_sums", "seconds"}


def terms_digest(description: str) -> bytes:
    """Of every word of an announcement, 16 bytes: what was agreed to never changes."""
    return blake2b(description.encode(), digest_size=16, person=b"quoron-terms").digest()


def announced_digest(message: federation.Announcement) -> bytes:
    """Return the same with what the second server of two servers has said of the plan, 32 bytes then."""
    if not message.spec and not message.HasField("consent"):
        return terms_digest(message.description)
    said = message.description.encode(), message.spec.encode(), message.consent.SerializeToString(deterministic=True)
    return blake2b(b"".join(sha256(text).digest() for text in said), person=b"quoron-terms", digest_size=32).digest()


def refusal(owner: Limits, terms: Promised) -> str | None:
    """Return why its owner takes no part in a run, by what it promises; None if nothing speaks against it."""
    if terms.trust_model not in owner.accept_trust_models:
        allowed = ", ".join(owner.accept_trust_models)
        return f"Expected a run of trust model {allowed}, got {terms.trust_model}."
    if terms.masked and not owner.masks:
        return (
            "Expected a run of one server, got one of two servers: it needs a client of `quoron serve` for one user, "
            "with a certificate and --second-server-key; a silo runs one for each of its persons."
        )
    if terms.public and PUBLIC_PARTICIPATION not in owner.accept_trust_models:
        return f"Expected a run that keeps secret who answers, got one that tells it (--accept {PUBLIC_PARTICIPATION})."
    if terms.simulation and owner.simulation_seed is None:
        return "Expected a run with secret noise, got a simulation."
    if terms.adjacency == "none" and "none" not in owner.accept_trust_models:
        return "Expected a run that guarantees something, got adjacency none."
    if terms.epsilon <= 0 and terms.trust_model != "none":
        return f"Expected a run of ε > 0, got ε = {terms.epsilon:g}."
    return None


def agreement(terms: Promised, digest: bytes) -> Agreement:
    """Return the agreement on a run, whose terms have that digest, at its cost for replacing one user."""
    cost = replace_one(terms.epsilon, terms.delta, adjacency=terms.adjacency, trust_model=terms.trust_model)
    promise = terms.model_dump_json(include=PROMISED)
    return Agreement(terms.run, digest, *cost, terms.participations, promise)
