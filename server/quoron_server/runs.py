"""A run, wherever its store is: check, charge, begin, carry out, end. The one way in which anything here is run.

    run = Run(name="visits-3f2a", plan=plan, digest=digest, account=account)
    run.check()                                  # nothing is written
    with closing(run.begin(path)) as ledger:     # in a file, or in a database
        run.charge()                             # before any value is read
        model = run.carry_out(ledger, engine)
    run.end(model=model)

In a file the noise key is written first, as a run of ours is its key; in a database the charge, as a run there is its
name. Every step is harmless to repeat, and a run that was killed goes on with the step that it had come to.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Context, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quoron_privacy.errors import ConfigError, OtherVersion
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.noise.streams import NoiseSource, SecureNoise, SeededNoise
from quoron_server import rounds
from quoron_server.algorithm import Algorithm, Vector
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import EVERYONE, Budget, RunPlan
from quoron_server.rounds import Engine, Evaluate, Evaluations, Observer
from quoron_server.serial import dumps
from quoron_server.storage.ledger import Ledger
from quoron_server.storage.lifetime_ledger import PopulationLedger
from quoron_server.storage.store import Store
from quoron_server.wording import plan_json, sentence

if TYPE_CHECKING:
    from quoron_server.algorithms import two_servers
else:
    two_servers = OnFirstUse("quoron_server.algorithms.two_servers")  # of that trust model alone

Account = Callable[[], AbstractContextManager[PopulationLedger]]  # the lifetime ledger, for as long as it is needed

_EIGHT_DIGITS = Context(prec=8, rounding=ROUND_CEILING)  # of μ


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run is, before it begins and whenever it goes on."""

    name: str  # in the lifetime ledger
    plan: RunPlan
    digest: str  # of all that makes it this run and no other, beside its plan
    group: str = EVERYONE  # whose lifetime account it is charged to
    account: Account | None = None  # that holds it; None: nothing is charged
    simulation_seed: int | None = None  # of a simulation
    trust_clients: bool = False
    budget: Budget = field(default_factory=Budget)
    cost: Mapping[str, Any] | None = None  # of a search, which keeps no state of its trials; None: that of the plan
    contents: Mapping[str, Any] = field(default_factory=dict)  # of a search, that its ledger keeps beside the plan

    def check(self) -> None:
        """BudgetExceeded or OtherVersion if the account would not take the charge now.

        ConfigError for a state that no database takes; VerificationError for a plan that breaks its guarantee in μ.
        """
        self._require_storable()
        if self._charged is not None:
            charge = self._charge  # seconds, perhaps: nobody else's account waits for them
            with self._charged() as population:
                population.check(self.name, group=self.group, **charge)

    def charge(self, drawn: dict[str, Any] | None = None) -> None:
        """Enter what it may cost, once however often it is called, and how its members were drawn. Raises what `check`
        raises."""
        if self._charged is not None:
            statement, charge = sentence(self.plan.guarantee), self._charge
            with self._charged() as population:
                population.charge(self.name, group=self.group, statement=statement, drawn=drawn, **charge)

    def begun(self, place: Path | Store) -> Ledger | None:
        """Its ledger, in a file or a database, if there is one; OtherVersion if that began with another run."""
        if isinstance(place, Path):
            ledger = Ledger.open(place) if place.is_file() else None
        else:
            ledger = Ledger.begun(place, self.name)
        if ledger is not None:
            thing = "configuration and data" if ledger.config_digest != self.digest else "plan"
            if thing != "plan" or ledger.plan_json != self.text:
                ledger.close()
                raise rounds.other_run(ledger.path, thing)
        return ledger

    def begin(self, place: Path | Store) -> Ledger:
        """Its ledger there, with a noise key of its own unless it has begun; to be closed. Raises what `begun` does."""
        ledger = self.begun(place)
        if ledger is not None:
            return ledger
        self._require_storable()
        contents: dict[str, Any] = {"plan": self.text, "config_digest": self.digest}
        key = self._fresh().export_key()
        if isinstance(place, Path):
            return Ledger.create(place, noise_key=key, **contents)
        ledger = Ledger.begin(place, self.name, noise_key=key, **contents)
        place.checkpoint()  # charge and key no longer rest on the journal alone
        return ledger

    def noise(self, ledger: Ledger) -> NoiseSource:
        """Return the noise of the key that it began with; of a complete run some noise, which nothing is drawn from."""
        if ledger.finished:
            return self._fresh()
        key = ledger.noise_key
        try:
            return SecureNoise(key) if self.simulation_seed is None else SeededNoise(int(key))
        except (ConfigError, ValueError):
            raise OtherVersion(
                f"Expected the kind of noise that began the run in {ledger.path}, got another. Use its configuration."
            ) from None

    def carry_out(
        self,
        ledger: Ledger,
        engine: Engine,
        observers: Sequence[Observer] = (),
        *,
        evaluate: Evaluate | None = None,
        evaluations: Evaluations | None = None,
        finish: Callable[[Vector], Vector] = lambda model: model,
    ) -> Vector:
        """Ask on from where the ledger of a begun and charged run stands, to the end: the released model, shape (d,).

        Raises what `rounds.run` raises.
        """
        if self.plan.guarantee.servers is not None:
            engine = two_servers.with_second_server(engine, self.plan, self.simulation_seed)
        return rounds.run(
            self._made,
            engine,
            ledger,
            self.noise(ledger),
            budget=self.budget,
            observers=observers,
            simulation=self.simulation_seed is not None,
            evaluate=evaluate,
            trust_clients=self.trust_clients,
            evaluations=evaluations,
            finish=finish,
        )

    def end(self, how: str = "complete", *, model: Vector | None) -> None:
        """Enter how it ended, and what was released, once however often it is called."""
        if self._charged is not None:
            with self._charged() as population:
                end(population, self.name, how, model=model)

    def give_back(self, population: PopulationLedger, rounds: int) -> bool:
        """Have a run that stopped after so many rounds counted with these alone, where that is proved (lifetime#lt2).

        Of its held-out users no larger a share of the evaluations has been made. Whether it is counted so.
        """
        gaussian, plan = ALGORITHMS[self.plan.algorithm].gaussian(self.plan), self.plan
        alone = plan.parameters.separate(plan.problem) and plan == plan.without(
            "estimates", "data_quality", "min_cohort"
        )
        if gaussian is None or not alone:
            return False
        return population.give_back(self.name, _rounded_up(gaussian.mu * math.sqrt(rounds / plan.cost.rounds)))

    @property
    def _made(self) -> Algorithm[Any]:
        return ALGORITHMS[self.plan.algorithm].make(self.plan)

    def _require_storable(self) -> None:
        if self.cost is None:
            rounds.require_storable(self._made)

    @property
    def _charge(self) -> Mapping[str, Any]:
        return charge_of(self.plan) if self.cost is None else self.cost

    @property
    def _charged(self) -> Account | None:
        return None if self.plan.guarantee.trust_model == "none" else self.account

    @property
    def text(self) -> str:
        """Its plan, as its ledger keeps it."""
        return dumps({**plan_json(self.plan), **self.contents})

    def _fresh(self) -> NoiseSource:
        return SecureNoise.fresh() if self.simulation_seed is None else SeededNoise(self.simulation_seed)


def end(population: PopulationLedger, run: str, how: str = "complete", *, model: Vector | None) -> None:
    """The last lines of a lifetime ledger, with what was released; written once, however often this is called."""
    if model is not None:
        population.release(run, {"model": hashlib.sha256(model.astype("<f8").tobytes()).hexdigest()})
    population.end(run, how)


def _rounded_up(mu: float) -> float:
    """So that no stored number depends on the last bits of a library's functions."""
    return float(_EIGHT_DIGITS.create_decimal(Decimal(mu)))


def charge_of(plan: RunPlan) -> dict[str, Any]:
    """Return what a plan's guarantee costs over a lifetime, as `PopulationLedger.charge` takes it."""
    guarantee, spec = plan.guarantee, ALGORITHMS[plan.algorithm]
    gaussian = spec.gaussian(plan)
    near, variation = spec.near_gaussian(plan) if gaussian is None else ((), gaussian.variation)
    return {
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "mu": None if gaussian is None else _rounded_up(gaussian.mu),
        "variation": variation,
        "adjacency": guarantee.adjacency,
        "near": near,
    }
