"""Carrying out a search over settings of a table in its folder, and what it released: an ordinary run's files.

`searching` says what is written and in which order; here are the files that people read, made of the best trial and of
public numbers alone.
"""

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from quoron.config import Config
from quoron.model import Model
from quoron.planning.plans import Prepared
from quoron.run_folder import CHOICE, FRAME, MODEL, SEARCH, RunFolder
from quoron.training import lifetime, result
from quoron.training.result import DoubtfulModel, TrainedTable
from quoron.training.room import ONCE, memory_for
from quoron.training.start import Identity
from quoron.training.table import Curated
from quoron.tuning.effort import Effort
from quoron.tuning.scoring import score_name
from quoron.tuning.searching import Best, Books, search
from quoron.tuning.tables import TableSearch, prepare
from quoron_privacy.errors import ConfigError
from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.release import Release
from quoron_server.parameters import Assumption
from quoron_server.plan import RunPlan
from quoron_server.rounds import other_run
from quoron_server.runs import end
from quoron_server.serial import dumps

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
        rows: list[tuple[str, str]] = result.report.choice_rows(asdict(self))
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


def prepared(
    config: Config,
    vary: Mapping[str, Sequence[Any]],
    n_trials: float | None,
    frame: Any,
    assumptions: Sequence[Assumption],
    *,
    seeded: bool,
) -> TableSearch:
    """The search of an estimator's fit, planned and priced; "algorithm.name" may be among the keys that vary."""
    return prepare(
        config,
        Path.cwd(),
        vary={key: values for key, values in vary.items() if key != "algorithm.name"},
        algorithms=vary.get("algorithm.name"),
        effort=Effort(n_trials),
        identity=Identity.fresh("fit"),
        frame=frame,
        seeded=seeded,
        assumptions=assumptions,
    )


def rehearsed(own: TableSearch, simulation_seed: int) -> tuple[Model, RunPlan, int, Choice]:
    """The best of a search with noise from a seed: its model and plan, rounds taken, and what was chosen."""
    source = SeededNoise(simulation_seed)
    best = search(own.price, source, lambda place, noise: own.perform(place, noise, source))
    candidate = own.candidates[best.candidate]
    held, plan = own.held_rows(candidate), own.promised(candidate.planned.plan)
    model = Model.released(best.outcome.weights, held.encoding, candidate.declared.loss, plan, made=None)
    return model, plan, len(best.outcome.events), choice_of(own, best)


def identity_of(folder: RunFolder | None, name: str) -> Identity:
    """That of the search that began there, or a new one."""
    if folder is not None and folder.is_search:
        return Identity(**folder.read_json(SEARCH)["identity"])
    return Identity.fresh(name)


def books_of(search: TableSearch, folder: RunFolder) -> Books:
    """Where it is kept, and what it is charged to."""
    text = dumps({"tune": _said(search), "plan": search.as_json()})
    digest = hashlib.sha256(dumps(_said(search)).encode()).hexdigest()
    train, seeded = search.config.train, search.seeded
    return Books(
        folder=folder.path,
        name=search.identity.run,
        text=text,
        digest=digest,
        price=search.price,
        group=train.population,
        statement=search.statement,
        account=None if seeded else lifetime.account(lifetime.place(train.ledger)),
        simulation_seed=search.config.run.seed if seeded else None,
    )


def carry_out(search: TableSearch, folder: RunFolder) -> Tuned:
    """The whole search, from wherever its folder stands. Raises what `Books.begin` raises.

    Warns with DoubtfulModel before the charge where no setting's plan is better than not training.
    """
    if (folder.path / MODEL).is_file():
        raise ConfigError(
            f"Expected a folder for a new or an interrupted search, got {folder.path} of a complete one. Read its "
            "model with `quoron.load`, or choose another folder."
        )
    books = books_of(search, folder)
    if not books.ledger.is_file():
        books.check()
        for doubt in search.doubts:
            warnings.warn(doubt, DoubtfulModel, stacklevel=2)
        folder.write_text("config.toml", search.config.as_toml())
        folder.write_json(SEARCH, {"identity": asdict(search.identity), **_said(search)})
    with closing(books.begin()) as own, memory_for("the rest of this search", ONCE):
        if own.finished:
            best = books.carry_out(own, lambda *_: _never(), room=search.room)
        else:
            if not own.same_inputs(search.digest()):
                raise other_run(folder.path, "table")
            source = books.noise(own)
            best = books.carry_out(
                own,
                lambda place, noise: search.perform(place, noise, source),
                room=search.room,
                entries=(Release("private-selection", {"mean_trials": search.price.trials.mean}),),
            )
        tuned = _kept(search, folder, best)
    books.end(model=best.outcome.weights)
    return tuned


def resume(folder: RunFolder) -> Tuned:
    """Go on with the search in a folder, for its one charge: the same trials, nothing drawn anew. Or read it."""
    kept = folder.read_json(SEARCH)
    if "vary" not in kept:
        raise ConfigError(
            f"Expected a search that its folder describes, got {folder.path} of quoron.select, whose trials a program "
            f"computes. Go on with the same call and out={str(folder.path)!r}."
        )
    config = folder.config()
    if (folder.path / MODEL).is_file():
        done = stored(folder)
        if not kept["seeded"]:
            with lifetime.opened(lifetime.place(config.train.ledger)) as population:
                end(population, Identity(**kept["identity"]).run, model=done.weights)
        return done
    if config.population.kind == "table" and config.population.path == FRAME:
        raise ConfigError(
            f"Expected a search on a file, got {folder.path} on a DataFrame, which is stored nowhere. Go on with the "
            f"same call of quoron.tune and out={str(folder.path)!r}."
        )
    search = prepare(
        config,
        folder.path,
        vary=kept["vary"],
        algorithms=kept["algorithms"],
        effort=Effort(**kept["effort"]),
        identity=Identity(**kept["identity"]),
        seeded=kept["seeded"],
    )
    return carry_out(search, folder)


def stored(folder: RunFolder) -> Tuned:
    """A complete search as its folder keeps it."""
    done, choice = result.stored(folder), Choice(**folder.read_json(CHOICE))
    return Tuned(done.model, done.weights, done.statement, done.directory, done.summary, choice)


def choice_of(search: TableSearch, best: Best) -> Choice:
    """What a search says of its best trial."""
    candidate = search.candidates[best.candidate]
    return Choice(
        candidate.name,
        dict(candidate.cell.varied),
        candidate.planned.plan.algorithm,
        best.outcome.score,
        score_name(candidate.declared.loss),
        search.noise.scale,
        search.price.as_json(),
    )


def _said(search: TableSearch) -> dict[str, Any]:
    """What was asked for, as `resume` reads it."""
    return {
        "config": search.config.model_dump(mode="json", exclude_none=True),
        "vary": {key: list(values) for key, values in search.vary},
        "algorithms": None if search.algorithms is None else list(search.algorithms),
        "effort": asdict(search.effort),
        "seeded": search.seeded,
    }


def _kept(search: TableSearch, folder: RunFolder, best: Best) -> Tuned:
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
    prepared = Prepared(search.config, scene, replace(planned, remarks=remarks), "", search.identity.run)
    folder.write_json("plan.json", prepared.planned.as_json() | {"search": search.as_json()})
    folder.write_text(CHOSEN, candidate.cell.config.as_toml())
    folder.write_json(CHOICE, asdict(choice))
    done = result.write(prepared, folder, np.asarray(best.outcome.weights), best.outcome.events)
    return Tuned(done.model, done.weights, done.statement, done.directory, done.summary, choice)


def _never() -> Any:
    raise AssertionError("a search that is over tries nothing")
