"""`quoron.tune`: from arguments to a search, planned, priced and carried out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack, overload

from quoron.arguments import TrainingArguments, entry_point
from quoron.data.columns import Label
from quoron.run_folder import SEARCH, RunFolder, claim
from quoron.simulation.sources import Source, described
from quoron.training import tuning
from quoron.training.start import Identity
from quoron.training.tuning import Effort, TableSearch, Tuned, prepare


class TuningArguments(TrainingArguments, total=False):
    """The arguments of a search."""

    vary: Mapping[str, Sequence[Any]] | None
    algorithms: Sequence[str] | None
    n_trials: float | None
    max_trials: int | None
    padded: bool
    holdout: float | None
    seed: int | None


_CONFIGURED = {*TrainingArguments.__annotations__, "seed"}  # the configuration's; the others are of the search


@overload
def tune(
    source: Source,
    user: str | None = ...,
    label: str | Label | None = ...,
    *,
    dry_run: Literal[True],
    **arguments: Unpack[TuningArguments],
) -> TableSearch: ...
@overload
def tune(
    source: Source,
    user: str | None = ...,
    label: str | Label | None = ...,
    *,
    dry_run: Literal[False] = ...,
    **arguments: Unpack[TuningArguments],
) -> Tuned: ...
@entry_point
def tune(
    source: Source,
    user: str | None = None,
    label: str | Label | None = None,
    *,
    dry_run: bool = False,
    **arguments: Unpack[TuningArguments],
) -> Tuned | TableSearch:
    """Train for real with several settings, and release the best by a private score, for little more than one run.

    Args:
        vary: dotted keys, each with the values to try; all combinations.
        algorithms: names, `auto` among them; default: the one that is configured.
        n_trials: in the mean; twice as many as settings unless given. How many there are is secret.
        max_trials: five times the mean unless given; three times where `padded`.
        padded: always carry out so many, so that the clock does not tell how many counted.
        holdout: share of the users that score every trial; 0.1 to 0.3, by how many there are, unless given.
        seed: SIMULATED: of all noise. It promises nothing, and nothing is charged.
        dry_run: return the search alone: what it would promise, cost and try. Nothing is charged, and no value is read.
        source, user, label, epsilon, delta, ...: as of `train`; (ε, δ) is the guarantee of the whole search.

    A secret number of trials each take one of the settings at random. Nothing is shown or kept of any but the best, and
    one charge is made before any value is read. Interrupted, it goes on with the same call and `out`, or
    `quoron resume`: the same trials, with the same noise.

    Raises:
        QuoronError: with the thing, its value and the fix; BudgetExceeded beyond the population's limit.
    """
    given: Any = arguments.get
    effort = Effort(given("n_trials"), given("max_trials"), given("padded", False), given("holdout"))
    seeded = given("seed") is not None
    configured = {name: value for name, value in arguments.items() if name in _CONFIGURED}
    config, name, frame = described(source, user, label, configured, secret=not seeded)
    folder = None if config.run.out is None else RunFolder(Path(config.run.out))
    asked: dict[str, Any] = {"vary": given("vary"), "algorithms": given("algorithms"), "seeded": seeded}
    asked |= {"identity": Identity.kept(folder, SEARCH) or Identity.fresh(name), "frame": frame}
    search = prepare(config, Path.cwd(), effort=effort, **asked)
    if dry_run:
        return search
    claimed = claim(search.request.config, name)
    with claimed.resumable():
        return tuning.carry_out(search, claimed)
