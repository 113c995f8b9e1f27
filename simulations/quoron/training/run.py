"""Carrying out a data holder's run in its folder: plan, charge, train, keep the model, erase what is secret.

What is written, and in which order, each step harmless to repeat after a crash:

    run.json, config.toml, plan.json     what was fixed from the declared facts and the number of users
    ledger.sqlite                        the noise key; later rounds and releases, and until the end the state
    lifetime ledger                      the charge, before anything is released that depends on a value of the table
    ledger.sqlite                        what a look at the table released, before it is shown, and before any round
    summary.json, ..., model.json        what was released, the model last
    lifetime ledger                      the model's digest, and the end

A run is its noise key: where ledger.sqlite is gone, the next run in the folder is another, with a charge of its own.

Until the end ledger.sqlite is private (mode 0600). No other file, line of output, error or exit status depends on the
table's values but through the releases, with exceptions that no release can cover. A table that cannot be read or does
not fit into memory is refused before the charge, and errors say that a table has changed, or that memory ends.
"""

import hashlib
import warnings
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from quoron.config import Config, TableSection, estimates_bounds, require_epsilon
from quoron.data.index import Rows
from quoron.engine.choice import INLINE, Inline, Ray
from quoron.evaluation.scores import held_users, parts
from quoron.model import Model
from quoron.planning.plans import Plan, Prepared, S
from quoron.run_folder import MODEL, RECORD, Identity, RunFolder
from quoron.simulation.problem import estimates_rate, with_columns
from quoron.simulation.problem import problem as problem_of
from quoron.training import data_quality, lifetime, result
from quoron.training.memory import ONCE, make_sure_of_answers, memory_for
from quoron.training.result import DoubtfulModel, TrainedTable
from quoron.training.table import CuratorEngine, TableSetup, check_section, load_rows, refuse_frame
from quoron_client.data.encoding import Signs
from quoron_client.data.items import ItemBatch
from quoron_privacy.errors import BudgetExceeded, ConfigError, Infeasible, NothingReleased, VerificationError
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.kernels.threads import all_threads, at_once
from quoron_privacy.noise.streams import NoiseSource, SeededNoise, StartedNoise
from quoron_privacy.release import Release
from quoron_server.algorithms import ALGORITHMS
from quoron_server.parameters import Assumption
from quoron_server.plan import ESTIMATES, EVALUATED, PLANNED, RunPlan
from quoron_server.rounds import Observer, other_run, without_ledger
from quoron_server.runs import end
from quoron_server.storage.ledger import Ledger

if TYPE_CHECKING:
    from quoron.training import estimated as estimating
    from quoron.training import evaluated
    from quoron.training.column_bounds import Released
    from quoron.training.estimated import Declarations, UndeclaredSetup
else:
    estimating = OnFirstUse("quoron.training.estimated")  # of a table that nobody declared
    evaluated = OnFirstUse("quoron.training.evaluated")  # of users that are held out

AnyPrepared: TypeAlias = "Prepared[UndeclaredSetup] | Prepared[TableSetup]"
DIGESTED = 1 << 22  # bytes of items that are digested at a time


def prepare(
    config: Config,
    base: Path,
    *,
    name: str,
    folder: RunFolder | None = None,
    frame: Any = None,
    assumptions: Sequence[Assumption] = (),
) -> "AnyPrepared":
    """Read, check and plan; every wrong request is refused here.

    A run that began in `folder`, by default `run.out`, keeps its name and seed. `assumptions` on the table stand in its
    promise. Raises ConfigError, DataError, Infeasible; BudgetExceeded if the group's limit leaves no room.
    """
    require_epsilon(config.privacy.model_fields_set, "training")
    done = False
    if folder is None and config.run.out is not None:
        folder = RunFolder(Path(config.run.out))
        done = _released(folder) is not None
    stored = Identity.stored(folder, RECORD)
    table = config, base, stored or Identity.fresh(name), frame, assumptions
    prepared: AnyPrepared = _undeclared(*table) or _planned(*table, begun=stored is not None)
    if folder is not None and done:
        raise complete(folder)
    prepared.run.check()
    return prepared


def simulate_training(config: Config, *, simulation_seed: int, frame: Any) -> tuple[Model, RunPlan, int]:
    """Train with noise from `simulation_seed`, for the data holder alone: the model, the plan, rounds taken.

    Bit-identical for the same declared table. Nothing is charged and nothing written, because nothing is promised.
    """
    prepared = _planned(config, Path.cwd(), Identity("rehearsal", simulation_seed, ""), frame, ())
    plan, rows = prepared.planned.plan.without("held_out", "data_quality").simulated(), prepared.setup.rows
    source, quality = SeededNoise(simulation_seed), prepared.planned.plan.guarantee.data_quality
    among, held_out = _parts(config, rows.declared.users, source)
    seen = None if quality is None else quality.shares(data_quality.drawn(quality, rows, source, among))
    noise = StartedNoise.simulated(source)
    engine = CuratorEngine(rows.declared, rows.items, noise, seed=_read_by(plan), among=among)
    weights, events = without_ledger(ALGORITHMS[plan.algorithm].make(plan), engine, noise)
    weights = data_quality.centred(weights, rows.encoding, prepared.planned.plan, seen)
    shares = data_quality.label_shares(rows.encoding, quality, seen)
    model = Model.released(weights, rows.encoding, rows.declared.loss, plan, made=None, shares=shares)
    if len(held_out) and (ending := evaluated.of_model(prepared, held_out, source)) is not None:
        promise, released = prepared.planned.plan.simulated().guarantee, ending.release(model.weights, 0)[1]
        measured = evaluated.evaluation(promise, rows.declared.loss, rows.encoding, model.weights, released)
        model = replace(model, evaluation=measured)
    return model, plan, len(events)


def forecast(config: Config, base: Path, frame: Any = None) -> Plan | None:
    """What a run would promise and cost of which something is estimated, with no account asked; None for another.

    Raises as `prepare`.
    """
    prepared = _of_simulation(config, base, frame)
    return None if prepared is None else prepared.planned


def simulated(config: Config, base: Path, frame: Any = None) -> tuple[Config, str]:
    """The configuration of a simulation with what a real run would buy, with noise from its seed; and that in words.

    Its promise is what the estimates leave; without estimates the configuration is unchanged. Raises what `prepare`
    does; NothingReleased where nothing could be trained.
    """
    prepared = _of_simulation(config, base, frame)
    if prepared is None:
        return config, ""
    paid = prepared.setup.paid
    released, _ = estimating.release(prepared.setup, SeededNoise(config.run.seed))
    estimates, rest = estimating.read(prepared, released)
    text = ", ".join(f"{bound.column}: {bound.text()}" for bound in estimates.lines())
    remark = (
        f"SIMULATED estimates, with noise from a seed, from everybody in the table: {text}. They cost {paid.share:.2g} "
        f"of μ², and leave epsilon={paid.rest_epsilon:.3g} of {config.privacy.epsilon:g} for what is simulated."
    )
    rest = rest.but(privacy={"epsilon": paid.rest_epsilon}, train={"holdout": config.train.holdout})
    return rest, " ".join([remark, *estimates.left_out])


def _of_simulation(config: Config, base: Path, frame: Any) -> "Prepared[UndeclaredSetup] | None":
    """Return a run of which something is estimated first, planned without held-out users: a simulation has its own."""
    identity = Identity("simulation", config.run.seed, "")
    return _undeclared(config.but(train={"holdout": None}), base, identity, frame, ())


def _parts(config: Config, users: int, noise: NoiseSource) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return users (k,) who are trained on, and those who are held out. Secret."""
    return parts(users, held_users(users, config.train.holdout), noise)


def _undeclared(
    config: Config, base: Path, identity: Identity, frame: Any, assumptions: Sequence[Assumption]
) -> "Prepared[UndeclaredSetup] | None":
    """Return a run of which something is estimated first, with the forecast that it is charged by; None for others.

    A rate alone is not estimated for a method that is not Gaussian as a whole.
    """
    known, named = None, config.algorithm.name
    able = named not in ALGORITHMS or ALGORITHMS[named].may_be_gaussian
    if estimates_bounds(config) or (able and estimates_rate(config)):
        known = estimating.prepared(config, base, identity, frame, assumptions)
    return None if known is None else _prepared(config, *known, config.digest(), identity)


def _planned(
    config: Config,
    base: Path,
    identity: Identity,
    frame: Any,
    assumptions: Sequence[Assumption],
    *,
    begun: bool = False,
    estimates: "Declarations | None" = None,
    asked: TableSection | None = None,
    digest: str | None = None,
    users_digest: bytes = b"",
) -> Prepared[TableSetup]:
    """Return a run whose plan is verified, before anybody asks whether the group's account has room for it."""
    given = check_section(config) if asked is None else asked
    config = with_columns(config, base, frame)
    rows = load_rows(config, base, frame, begun=begun, given=given, users_digest=users_digest)
    seeded = config.but(run={"seed": identity.seed})
    users = rows.declared.users
    trained = replace(rows.declared, users=users - held_users(users, config.train.holdout))
    of = seeded, problem_of(config, trained), rows.encoding
    planned, unchecked = data_quality.plan(*of) if estimates is None else estimating.within(*of, estimates.paid)
    if config.train.holdout is not None:
        planned = evaluated.with_held_out(planned, config, rows.encoding, users)
    plan = planned.plan.as_curated(assumptions)
    plan.require_deployable(trust_clients=True)
    label, remarks = rows.encoding.label, planned.remarks
    if estimates is None and isinstance(label, Signs) and not label.truth:  # whose type does not say so
        remarks += (f"Label {label.column!r} is read as true/false, 0/1 or -1/1: else declare it, or estimate it.",)
    if unchecked is not None:
        remarks += (f"No data quality check is made: {unchecked}.",)
    rows = replace(rows, declared=replace(rows.declared, domain=plan.problem.domain))
    setup = TableSetup(rows, identity, unchecked, estimates, users_digest)
    return _prepared(config, setup, replace(planned, plan=plan, remarks=remarks), digest or config.digest(), identity)


def _prepared(config: Config, setup: S, planned: Plan, digest: str, identity: Identity) -> Prepared[S]:
    return Prepared(config, setup, planned, digest, identity.run, partial(lifetime.opened, config.train.ledger))


def _with_estimates(prepared: "Prepared[UndeclaredSetup]", folder: RunFolder) -> Prepared[TableSetup]:
    """Return the run as planned for what was estimated, which is done now if it has not been: charged, then committed.

    Nothing is made of what was estimated, no plan and no error, before it is committed: a user who starts again after
    whatever went wrong finds the same. NothingReleased, with all of it charged, where nothing can be trained with what
    was found; so again at every start.
    """
    with closing(_run_ledger(prepared, folder)) as own:
        ended = own.finished or (own.released(PLANNED) or {}).get("refused")
        if not ended and not own.same_inputs(prepared.setup.users_digest):  # a slot is the same user's to the end
            raise other_run(folder.path, "table")

        def draw() -> tuple[tuple[Release, ...], dict[str, Any]]:
            prepared.run.charge()
            trained, _ = _parts(prepared.config, prepared.setup.users, prepared.run.noise(own))
            released, entries = estimating.release(prepared.setup, among=trained)
            return entries, {"estimates": released}

        estimates, outcome, run = own.draw_once(ESTIMATES, draw)["estimates"], own.released(PLANNED), None
        if outcome is None:
            run, refused = _try_plan(prepared, estimates)
            outcome = {"refused": refused}
            own.commit(PLANNED, None, (), outcome, plan=(prepared if run is None else run).run.text)
        elif not outcome["refused"]:  # there is a plan: whatever is wrong now is not with what was found
            run = _planned_from(prepared, estimates)
        if run is None:
            own.abandon()
    if run is None:
        prepared.run.end("failed", model=None)
        raise NothingReleased(f"Nothing was trained, and the whole of epsilon is spent. {outcome['refused']}")
    folder.write_json("plan.json", run.planned.as_json())
    assert run.setup.estimates is not None
    folder.write_text("declared.toml", run.setup.estimates.toml(run.config))
    return run


def _run_ledger(prepared: "Prepared[UndeclaredSetup]", folder: RunFolder) -> Ledger:
    """Return its open ledger. Until it is planned for the estimates its plan is the forecast. OtherVersion else."""
    if folder.ledger.exists():
        own = Ledger.open(folder.ledger)
        if own.config_digest != prepared.digest:
            own.close()
            raise other_run(folder.path, "configuration")
        if own.released(PLANNED) is not None:
            return own
        own.close()
    return prepared.begin(folder, asdict(prepared.setup.identity))


def _try_plan(prepared: "Prepared[UndeclaredSetup]", released: "Released") -> tuple[Prepared[TableSetup] | None, str]:
    """Return the run for what was released, or why there is none."""
    try:  # whatever is wrong with what was found is a function of it: a statement, never a run that cannot go on
        return _planned_from(prepared, released), ""
    except (NothingReleased, Infeasible, ConfigError, BudgetExceeded, VerificationError) as error:
        return None, str(error)


def _planned_from(prepared: "Prepared[UndeclaredSetup]", released: "Released") -> Prepared[TableSetup]:
    """Return the run for what was released."""
    setup, (estimates, config) = prepared.setup, estimating.read(prepared, released)
    given = config, setup.base, setup.identity, setup.frame, setup.assumptions
    own: dict[str, Any] = {"digest": prepared.digest, "users_digest": setup.users_digest}
    planned = _planned(*given, begun=True, estimates=estimates, asked=check_section(prepared.config), **own)
    if planned.run.plan.guarantee.estimates is not estimates.paid:
        raise VerificationError("Expected a guarantee of the estimates and all else together, got one without.")
    return planned


def carry_out(
    prepared: "AnyPrepared",
    folder: RunFolder,
    observers: Sequence[Observer] = (),
    *,
    engine: Inline | Ray = INLINE,
) -> TrainedTable:
    """Train in `folder` from wherever its ledger stands, and write every file of the run folder.

    Workers of the `engine` answer for the users, to the same bits. Warns with DoubtfulModel before the charge
    where the plan's bound is no better than not training.
    """
    if _released(folder) is not None:  # of which table, nothing here may tell
        raise complete(folder)
    begun = folder.ledger.exists()
    if begun and not folder.is_training:
        raise ConfigError(f"Expected a folder for a new run, got {folder.path} with a simulation. Choose another.")
    for doubt in () if begun else prepared.planned.doubts:
        warnings.warn(doubt, DoubtfulModel, stacklevel=2)
    if not isinstance(prepared.setup, TableSetup):  # which is charged, and so has begun, before it can be planned
        prepared, begun = _with_estimates(prepared, folder), True
    run, rows, identity = prepared.run, prepared.setup.rows, prepared.setup.identity
    if not begun:
        make_sure_of_answers(run.plan)
    with closing(prepared.begin(folder, asdict(identity))) as own:
        run.charge()
        with memory_for("the rest of this run", ONCE):
            if not own.finished and not own.same_inputs(prepared.setup.users_digest, digest_of(rows.items)):
                raise other_run(folder.path, "table")
            source = run.noise(own)
            among, held_out = _parts(prepared.config, rows.declared.users, source)
            seen, words = data_quality.release(prepared, own, among), StartedNoise.fresh(source)
            rows.drop_marks()
            given: dict[str, Any] = {"seed": _read_by(run.plan), "engine": engine, "among": among}
            ending = evaluated.of_model(prepared, held_out) if len(held_out) else None
            finish = partial(data_quality.centred, encoding=rows.encoding, plan=run.plan, seen=seen)
            with closing(CuratorEngine(rows.declared, rows.items, words, **given)) as curator:
                model = run.carry_out(own, curator, observers, evaluations=ending, finish=finish)
            events = own.events()
            measured = None
            if len(held_out):
                of = run.plan.guarantee, rows.declared.loss, rows.encoding, model
                measured = evaluated.evaluation(*of, own.released(EVALUATED))
    trained = result.write(prepared, folder, model, events, seen, measured)
    run.end(model=model)
    return trained


def resume(folder: RunFolder, observers: Sequence[Observer] = (), *, engine: Inline | Ray = INLINE) -> TrainedTable:
    """Go on with the run in `folder`, from its last committed round and for one charge; a complete one is read.

    What it has released stands, to the bit; what a kill left uncommitted is drawn again (docs/durability.md).
    """
    config, model = folder.config(), _released(folder)
    if model is not None:
        with closing(Ledger.open(folder.ledger)) as own:
            if own.config_digest != config.digest():
                raise other_run(folder.path, "configuration")
        with lifetime.opened(config.train.ledger) as ledger:
            end(ledger, Identity(**folder.read_json(RECORD)).run, model=model)
        return result.stored(folder)
    refuse_frame(config, folder, "quoron.train")
    prepared = prepare(config, folder.path, name=folder.path.name, folder=folder)
    return carry_out(prepared, folder, observers, engine=engine)


def _released(folder: RunFolder) -> NDArray[np.float64] | None:
    """Return the model of a complete run whose files are there."""
    if not (folder.is_training and (folder.path / MODEL).is_file()):
        return None
    with closing(Ledger.open(folder.ledger)) as own:
        return own.model if own.finished else None


def complete(folder: RunFolder, what: str = "run") -> ConfigError:
    """Return what is said where something would begin in the folder of a complete run, or search."""
    return ConfigError(
        f"Expected a folder for a new or an interrupted {what}, got {folder.path} of a complete one. Read its model "
        "with `quoron.load`, or choose another folder."
    )


def _read_by(plan: RunPlan) -> int | None:
    """Seed of the order in which a run reads each user once a pass; None: that of slots."""
    return None if plan.asks_everybody else plan.seed


def digest_of(items: ItemBatch | Rows) -> bytes:
    """Of all that the run computes with, or of the files that hold it; private, and erased at its end."""
    digest = hashlib.blake2b(digest_size=32, person=b"quoron-items")
    if not isinstance(items, ItemBatch):
        digest.update(items.index.digest.encode())
        return digest.digest()
    for array in (items.features, items.labels, items.offsets, items.item_weights):
        digest.update(f"{array.dtype.str} {array.shape}".encode())
        data = np.ascontiguousarray(array).view(np.uint8).ravel()
        digests = [b""] * -(-len(data) // DIGESTED)

        def part(place: int, data: Any = data, digests: list[bytes] = digests) -> None:
            own = data[place * DIGESTED : (place + 1) * DIGESTED]
            digests[place] = hashlib.blake2b(own, digest_size=32, person=b"quoron-items").digest()

        at_once([partial(part, place) for place in range(len(digests))], all_threads())
        digest.update(b"".join(digests))
    return digest.digest()
