"""Settings to try on a table: planned, priced and checked before any value is looked at, and a trial of one of them.

Users are split once, by a draw from the search's secret noise: those held out score every trial, and all others train
every trial. A user is in one of both, so a trial costs the worse of what training and scoring cost
(docs/privacy/selection.md#se3).

Carrying out a search over settings of a table in its folder, and what it released: an ordinary run's files.

`searching` says what is written and in which order; here are the files that people read, made of the best trial and of
public numbers alone.
"""

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from quoron.config import Config, TableSection, is_wanted, require_epsilon
from quoron.data.users import Declared
from quoron.evaluation.scores import held_out
from quoron.planning.plans import Plan, Prepared, choose
from quoron.results import Printed, in_units
from quoron.run_folder import CHOICE, MODEL, SEARCH, RunFolder
from quoron.simulation.cells import Cell, Request, shown
from quoron.simulation.problem import encoding_of, loss_of, make_domain, with_columns
from quoron.simulation.problem import problem as problem_of
from quoron.training import data_quality, lifetime, result
from quoron.training.evaluated import batches
from quoron.training.memory import ONCE, memory_for
from quoron.training.result import DoubtfulModel, TrainedTable
from quoron.training.run import digest_of
from quoron.training.start import Identity
from quoron.training.table import Curated, CuratorEngine, HeldRows, check_section, hold, refuse_frame
from quoron.tuning.searching import (
    THEOREM,
    USELESS,
    WORST,
    Effort,
    Outcome,
    Price,
    noise_for,
    pair_of,
    planned_with,
    private_mean,
    score_name,
    user_scores,
    within,
    worst,
)
from quoron.tuning.searching import search as trials
from quoron_client.losses import Regression
from quoron_privacy.accounts import gdp
from quoron_privacy.accounts.pair import Pair
from quoron_privacy.errors import ConfigError, Infeasible, NothingReleased, QuoronError
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.streams import NoiseSource, SecureNoise, SeededNoise
from quoron_privacy.release import Release
from quoron_privacy.selection.price import calibrate
from quoron_server.algorithms import ALGORITHMS
from quoron_server.parameters import Assumption
from quoron_server.plan import EVALUATED, LEAST_EPSILON, RunPlan
from quoron_server.rounds import other_run, without_ledger
from quoron_server.runs import end
from quoron_server.serial import dumps
from quoron_server.storage.ledger import Ledger
from quoron_server.storage.lifetime_ledger import PopulationLedger
from quoron_server.wording import sentence

FIXED = ("privacy.", "run.", "train.", "population.user", "population.path", "population.kind", "population.label")
_Planned = tuple[list["Candidate"], list[tuple[str, str]], GaussianNoise]  # settings, those left out, noise of scores


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One setting, planned for one trial."""

    cell: Cell
    config: Config  # with what a trial may spend
    planned: Plan
    declared: Declared  # of those who train

    @property
    def name(self) -> str:
        """For people: the algorithm that is carried out, and what varies."""
        own = self.planned.plan.algorithm
        taken = own if self.cell.algorithm == own else f"{self.cell.algorithm} ({own})"
        return " ".join([taken, *(f"{key}={shown(value)}" for key, value in self.cell.varied)])


@dataclass(frozen=True, eq=False, repr=False)
class TableSearch(Printed):
    """A search over settings of one table, ready to be charged."""

    request: Request  # the configuration, and what varies
    candidates: tuple[Candidate, ...]
    refused: tuple[tuple[str, str], ...]  # settings that nothing can be planned for, and why
    price: Price
    effort: Effort
    identity: Identity
    users: int  # all of them
    held: int  # of these, held out
    noise: GaussianNoise  # of a trial's score
    rows_of: "_Rows"
    seeded: bool  # a simulation
    _algorithms: dict[int, Any] = field(default_factory=dict)  # by the place of their candidate

    @property
    def asked(self) -> dict[str, Any]:
        """What was asked for, as `resume` reads it."""
        return self.request.as_json() | {"effort": asdict(self.effort), "seeded": self.seeded}

    @property
    def statement(self) -> str:
        """The promise in a sentence."""
        return sentence(self.promised(self.candidates[0].planned.plan).guarantee)

    def promised(self, plan: RunPlan) -> RunPlan:
        """The plan of a trial with what the whole search promises."""
        assumed = (Assumption(self.price.assumed),)
        made = replace(
            plan.guarantee,
            epsilon=self.price.epsilon,
            delta=self.price.delta,
            theorem=f"{THEOREM} over {plan.guarantee.theorem}",
        ).assuming(assumed)
        return replace(plan, guarantee=made.simulated() if self.seeded else made)

    def account(self) -> AbstractContextManager[PopulationLedger | None]:
        """The privacy ledger, open; None for a simulation, which is charged to nobody."""
        return nullcontext() if self.seeded else lifetime.opened(lifetime.place(self.request.config.train.ledger))

    @property
    def charge(self) -> dict[str, Any]:
        """What the whole search costs, and whose budget."""
        spent = {"epsilon": self.price.epsilon, "delta": self.price.delta, "adjacency": self.price.adjacency}
        return {"group": self.request.config.train.population, **spent}

    def end(self, status: str = "complete", *, model: Any = None) -> None:
        """Enter in the privacy ledger what became of it."""
        with self.account() as population:
            if population is not None:
                end(population, self.identity.run, status, model=model)

    @property
    def doubts(self) -> tuple[str, ...]:
        """That no setting's plan is better than not training, said of the first; () where one is."""
        found = [candidate.planned.doubts for candidate in self.candidates]
        return found[0] if all(found) else ()

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is public and amiss."""
        found = [f"left out, as nothing can be planned for it: {name}: {why}" for name, why in self.refused]
        if self.noise.scale > USELESS * (1 + 1e-3):
            found.append(
                f"a trial's score is off by {self._noise_told} by its noise alone: settings that differ by less "
                "are told apart by luck: hold out more users (evaluate), try fewer settings, or raise epsilon."
            )
        return tuple(found)

    @property
    def _noise_told(self) -> str:
        """The noise of a score; of numbers in the label's units too, as a share of a wide range looks like little."""
        first, shown = self.candidates[0], f"± {self.noise.scale:.2g}"
        if not isinstance(first.declared.loss, Regression):
            return shown
        label = cast(TableSection, first.config.population).label
        low, high = (label and label.range) or (0.0, 0.0)
        units = self.noise.scale * worst(first.declared.loss) * (high - low)
        return f"{shown} ({in_units(units)} of the label's units)" if high > low else shown

    def held_rows(self, candidate: Candidate) -> HeldRows:
        """All users, as a setting encodes them."""
        return self.rows_of.of(candidate.config)

    def digest(self) -> bytes:
        """Of what trials compute with, under every setting; private, and erased at the end."""
        others = {self.rows_of.key(each.config): each for each in self.candidates}
        parts = b"".join(digest_of(self.held_rows(each).items()) for each in others.values())
        return hashlib.blake2b(parts, digest_size=32, person=b"quoron-tuning").digest()

    def perform(self, place: int, noise: NoiseSource, source: NoiseSource) -> Outcome:
        """One trial: the candidate at this place, trained and scored with the noise of the trial."""
        candidate = self.candidates[place]
        items, plan = self.held_rows(candidate).items(), candidate.planned.plan
        declared = replace(candidate.declared, users=self.users)
        apart = held_out(source, self.users, self.held)
        training, scoring = np.flatnonzero(~apart), np.flatnonzero(apart)
        order = None if plan.asks_everybody else plan.seed
        engine = CuratorEngine(declared, items, noise, seed=order, among=training)
        if place not in self._algorithms:  # which is verified, once
            self._algorithms[place] = ALGORITHMS[plan.algorithm].make(plan)
        weights, events = without_ledger(self._algorithms[place], engine, noise)
        scores = [user_scores(weights, declared.loss, each) for each in batches(declared, items, scoring)]
        score = private_mean(np.concatenate(scores), self.noise, noise)
        return Outcome(score, weights, events)

    def as_json(self) -> dict[str, Any]:
        """What is fixed before anything is looked at."""
        return {
            "price": self.price.as_json(),
            "statement": self.statement,
            "candidates": [
                {"name": each.name, "varied": dict(each.cell.varied), "algorithm": each.planned.plan.algorithm}
                for each in self.candidates
            ],
            "refused": [{"name": name, "why": why} for name, why in self.refused],
            "users": self.users,
            "held_out": self.held,
            "score": score_name(self.candidates[0].declared.loss),
            "score_noise": self.noise.scale,
            "remarks": [*self.doubts, *self.remarks],
        }

    def rows(self) -> list[tuple[str, str]]:
        """Label and text of each line people see before it begins."""
        said, each = self.price.as_json(), self.candidates[0].planned.plan.guarantee
        times = said["epsilon"] / said["trial_epsilon"]
        missed = said["chance_that_one_setting_is_never_tried"]
        padded = "always as many; each trial's own time tells its setting"
        clock = padded if self.price.padded else "NOT padded: anyone who sees how long it takes learns more"
        return [
            ("settings", f"{len(self.candidates):,}"),
            ("trials", f"{self.price.trials.words}; a setting is never tried with chance {missed:.2g}"),
            ("the whole search", f"ε = {said['epsilon']:.4g}, δ = {said['delta']:g}, {self.price.adjacency}"),
            ("one trial", f"ε = {said['trial_epsilon']:.4g} at the same δ: the search costs {times:.2f} times that"),
            ("in the open", f"all settings one after the other: ε = {said['open_search_epsilon']:.4g} at the same δ"),
            ("users", f"{self.users - self.held:,} train, {self.held:,} score every trial"),
            ("score", f"{score_name(self.candidates[0].declared.loss)}, off by {self._noise_told} by noise"),
            ("a trial is planned with", f"ε = {each.epsilon:.4g}, δ = {each.delta:.2g}"),
            ("the clock", clock),
        ]


def prepare(
    config: Config,
    base: Path,
    *,
    vary: Mapping[str, Sequence[Any]] | None,
    algorithms: Sequence[str] | None,
    effort: Effort,
    identity: Identity,
    frame: Any = None,
    seeded: bool = False,
) -> TableSearch:
    """Read, check, plan and price; every wrong request is refused here. Raises ConfigError, DataError, Infeasible."""
    if not seeded:
        require_epsilon(config.privacy.model_fields_set, "tuning")
    if is_wanted(config):
        raise ConfigError(
            "Expected a table whose features are declared to tune on, got one of which some are to be estimated: "
            "every trial would estimate them again. Run `quoron bounds` once and put its lines into the configuration, "
            "or take the declared.toml of a run of `quoron train`."
        )
    if config.train.holdout is not None:
        raise ConfigError(
            f"Expected no train.holdout for a search, got {config.train.holdout:g}: its own held-out users score "
            "every trial. Say how many in holdout=, and evaluate the chosen model on other people."
        )
    config = with_columns(config, base, frame)
    names = (config.algorithm.name,) if algorithms is None else algorithms
    request = Request.of(config, algorithms=names, vary=_varied(vary), seeds=1)
    cells = request.cells()
    if len(cells) < 2:
        raise ConfigError("Expected two settings or more to try, got one. Give vary, or several algorithms.")
    law, (epsilon, delta) = effort.of(len(cells)), (config.privacy.epsilon, config.privacy.delta)
    rows = _Rows(base, frame)
    helds = [rows.of(each.config).declared for each in cells]
    users = helds[0].users
    if any(each.users != users for each in helds):
        raise ConfigError("Expected settings of the same users, got some of others. Vary what does not change them.")
    held = effort.held(users, calibrate(epsilon, delta, law))

    def plan(mu: float, each: float) -> tuple[_Planned, list[Pair]]:
        candidates, refused = _planned(cells, helds, (mu, each), held, identity)
        noise = noise_for(gdp.mu_for(planned_with(mu, each), each, gaussians=1), held)
        plans = [each.planned.plan for each in candidates]
        pairs = [pair for each in plans for pair in ALGORITHMS[each.algorithm].pairs(each)]
        return (candidates, refused, noise), [*pairs, pair_of(noise, held)]

    asked = Price(law, (), epsilon, delta, config.privacy.adjacency, len(cells), effort.padded)
    (candidates, refused, noise), price = within(asked, plan)
    price = replace(price, candidates=len(candidates))
    planned = (tuple(candidates), tuple(refused), price)
    return TableSearch(request, *planned, effort, identity, users, held, noise, rows, seeded)


def _planned(
    cells: Sequence[Cell], helds: Sequence[Declared], of_a_trial: tuple[float, float], held: int, identity: Identity
) -> tuple[list[Candidate], list[tuple[str, str]]]:
    mu, delta = of_a_trial
    epsilon = planned_with(mu, delta)
    if epsilon < LEAST_EPSILON:
        raise Infeasible("selection", f"a trial would have epsilon={epsilon:.2g}", "a larger epsilon, or fewer trials")
    found: list[Candidate] = []
    refused: list[tuple[str, str]] = []
    errors: list[QuoronError] = []
    for cell, declared in zip(cells, helds, strict=True):
        training = replace(declared, users=declared.users - held)
        try:
            privacy, run = {"epsilon": epsilon, "delta": delta}, {"seed": identity.seed}
            config = cell.config.but(privacy=privacy, train={"data_quality": 0.0, "holdout": None}, run=run)
            planned = choose(config, problem_of(config, training), alternatives=False)
            plan = planned.plan.as_curated()
            plan.require_deployable(trust_clients=True)
        except (Infeasible, ConfigError) as error:
            refused.append((cell.named, str(error)))
            errors.append(error)
            continue
        training = replace(training, domain=plan.problem.domain)
        found.append(Candidate(cell, config, replace(planned, plan=plan), training))
    if not found:
        raise errors[0]
    return found, refused


def _varied(vary: Mapping[str, Sequence[Any]] | None) -> Mapping[str, Sequence[Any]]:
    for key in vary or {}:
        if key.startswith(FIXED):
            raise ConfigError(
                f"Expected settings of a method or of columns to vary, got {key}: a search has one guarantee, to the "
                "same users for the same label. Leave it out."
            )
    return vary or {}


class _Rows:
    """Rows of one table as settings encode them: read once for all settings that encode them alike."""

    def __init__(self, base: Path, frame: Any) -> None:
        self._base, self._frame = base, frame
        self._held: dict[str, HeldRows] = {}

    @staticmethod
    def key(config: Config) -> str:
        """Alike for settings that encode rows alike."""
        encoding = encoding_of(check_section(config), loss_of(config))
        return json.dumps([encoding.as_json(), config.population.items_per_user], sort_keys=True, default=str)

    def of(self, config: Config) -> HeldRows:
        """As `config` encodes and declares them. Raises what `hold` raises."""
        loss, key = loss_of(config), self.key(config)
        encoding = encoding_of(check_section(config), loss)
        if key not in self._held:
            self._held.clear()  # before others are read
            held = hold(config, self._base, self._frame)
            held.looked()
            self._held[key] = held.encoded_by(data_quality.weighed(held.encoding, None, None))
        held = self._held[key]
        encoding.check_loss(loss)
        domain, dimension = make_domain(config.domain, config.loss.feature_norm), encoding.dimension * loss.outputs
        declared = replace(held.declared, loss=loss, domain=domain, dimension=dimension)
        return replace(held, declared=declared)


CHOSEN = "chosen.toml"
UNLOOKED = "a search looks at nothing but scores"


@dataclass(frozen=True, slots=True)
class Choice:
    """What a search chose, and what it cost."""

    name: str  # of the setting, for people
    varied: Mapping[str, Any]  # its keys and values
    algorithm: str
    score: float  # of the best trial, with noise: of the best of several, so rather too high
    score_name: str
    score_noise: float  # standard deviation of it
    price: Mapping[str, Any]  # of the whole search, of one trial, and of a search in the open

    def rows(self) -> list[tuple[str, str]]:
        """Label and text of each line people see."""
        rows: list[tuple[str, str]] = result.pages.choice_rows(asdict(self))
        return rows


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tuned(TrainedTable):
    """The model of the best trial, with the promise of the whole search."""

    choice: Choice

    def rows(self) -> list[tuple[str, str]]:
        """What was chosen, and the first lines of its model's."""
        return [*self.choice.rows()[:3], *self.summary.rows()[:4]]

    def as_json(self) -> dict[str, Any]:
        """Return those of the summary, with the choice."""
        return TrainedTable.as_json(self) | {"choice": asdict(self.choice)}


def carry_out(search: TableSearch, folder: RunFolder) -> Tuned:
    """The whole search, from wherever its folder stands. Raises what `_best` raises.

    Warns with DoubtfulModel before the charge where no setting's plan is better than not training.
    """
    if (folder.path / MODEL).is_file():
        raise ConfigError(
            f"Expected a folder for a new or an interrupted search, got {folder.path} of a complete one. Read its "
            "model with `quoron.load`, or choose another folder."
        )
    if not folder.ledger.is_file():
        with search.account() as population:
            if population is not None:
                population.check(search.identity.run, **search.charge)
        for doubt in search.doubts:
            warnings.warn(doubt, DoubtfulModel, stacklevel=2)
        folder.write_text("config.toml", search.request.config.as_toml())
        folder.write_json(SEARCH, {"identity": asdict(search.identity), **search.asked})
    with memory_for("the rest of this search", ONCE):
        best = _best(search, folder)
        tuned = _kept(search, folder, best)
    search.end(model=best.weights)
    return tuned


def _best(search: TableSearch, folder: RunFolder) -> Outcome:
    """Begin and charge a search, or go on from where it stands, to the end: the best trial, kept before it is reported.

    What was secret is erased. NothingReleased, with all of it charged, where the best trial is no model; OtherVersion
    if another search began here, or one on another table.
    """
    with closing(_begun(search, folder)) as own:
        if not own.finished:
            if not own.same_inputs(search.digest()):
                raise other_run(folder.path, "table")
            noise = SeededNoise(int(own.noise_key)) if search.seeded else SecureNoise(own.noise_key)
            best = trials(search.price, noise, search.perform)
            chosen = {"candidate": best.candidate, "score": best.score, "events": list(best.events)}
            release = Release("private-selection", {"mean_trials": search.price.trials.mean})
            own.finish(best.weights, (release,), {"selected": chosen})
        released = own.released(EVALUATED)
        assert released is not None
        selected = released["selected"]
        if selected["score"] <= WORST:
            search.end("failed")
            raise NothingReleased(
                "Nothing was chosen, and the whole of epsilon is spent: no trial's score and model were finite numbers."
            )
        return Outcome(selected["score"], own.model, tuple(selected["events"]), selected["candidate"])


def _begun(search: TableSearch, folder: RunFolder) -> Ledger:
    """The ledger of a search, and its charge."""
    text = dumps({"tune": search.asked, "plan": search.as_json()})
    if not folder.ledger.is_file():
        key = SeededNoise(search.request.config.run.seed) if search.seeded else SecureNoise.fresh()
        digest = hashlib.blake2b(text.encode(), digest_size=32).hexdigest()
        own = Ledger.create(folder.ledger, plan=text, config_digest=digest, noise_key=key.export_key())
    else:
        own = Ledger.open(folder.ledger)
    try:
        if own.plan_json != text:
            raise other_run(folder.ledger, "settings to try, or price")
        with search.account() as population:
            if population is not None:
                population.charge(search.identity.run, statement=search.statement, **search.charge)
    except BaseException:
        own.close()
        raise
    return own


def resume(folder: RunFolder) -> Tuned:
    """Go on with the search in a folder, for its one charge: the same trials, nothing drawn again. Or read it."""
    kept = folder.read_json(SEARCH)
    config = folder.config()
    if (folder.path / MODEL).is_file():
        done = stored(folder)
        if not kept["seeded"]:
            with lifetime.opened(lifetime.place(config.train.ledger)) as population:
                end(population, Identity(**kept["identity"]).run, model=done.weights)
        return done
    refuse_frame(config, folder, "quoron.tune")
    search = prepare(
        config,
        folder.path,
        vary=kept["vary"],
        algorithms=kept["algorithms"],
        effort=Effort(**kept["effort"]),
        identity=Identity.kept(folder, SEARCH) or Identity.fresh(folder.path.name),
        seeded=kept["seeded"],
    )
    return carry_out(search, folder)


def stored(folder: RunFolder) -> Tuned:
    """A complete search as its folder keeps it."""
    done, choice = result.stored(folder), Choice(**folder.read_json(CHOICE))
    return Tuned(done.model, done.weights, done.statement, done.directory, done.summary, choice)


def choice_of(search: TableSearch, best: Outcome) -> Choice:
    """What a search says of its best trial."""
    candidate = search.candidates[best.candidate]
    return Choice(
        candidate.name,
        dict(candidate.cell.varied),
        candidate.planned.plan.algorithm,
        best.score,
        score_name(candidate.declared.loss),
        search.noise.scale,
        search.price.as_json(),
    )


def _kept(search: TableSearch, folder: RunFolder, best: Outcome) -> Tuned:
    """The files of the trial that is released; the model last."""
    candidate = search.candidates[best.candidate]
    held = search.held_rows(candidate)
    planned = replace(candidate.planned, plan=search.promised(candidate.planned.plan))
    choice = choice_of(search, best)
    remarks = (*planned.remarks, *search.remarks)
    scene = Curated(
        replace(held, declared=candidate.declared, warnings=(*held.warnings, *search.remarks)),
        search.identity,
        UNLOOKED,
    )
    prepared = Prepared(search.request.config, scene, replace(planned, remarks=remarks), "", search.identity.run)
    folder.write_json("plan.json", prepared.planned.as_json() | {"search": search.as_json()})
    folder.write_text(CHOSEN, candidate.cell.config.as_toml())
    folder.write_json(CHOICE, asdict(choice))
    done = result.write(prepared, folder, np.asarray(best.weights), best.events)
    return Tuned(done.model, done.weights, done.statement, done.directory, done.summary, choice)
