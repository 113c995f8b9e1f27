"""What users that a simulation holds out would tell of its model, privately: `train.holdout` of a table.

Every run of a comparison measures the same users, whatever its algorithm and its seed; the noise is of the run's seed.
"""

import numpy as np
from numpy.typing import NDArray

from quoron.config import Config
from quoron.data import Population, TablePopulation
from quoron.evaluation import figures, measuring
from quoron.evaluation.scores import Scorer
from quoron.evaluation.split import held_out, held_users
from quoron_client.data.encoding import outcomes
from quoron_privacy.counts.held_out import HeldOut
from quoron_privacy.errors import ConfigError
from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.release import Adjacency
from quoron_server.wording import ReleaseGuarantee

Told = dict[str, tuple[float, float, float]]  # value, low and high by name


def held_out_release(config: Config, population: Population, adjacency: Adjacency) -> HeldOut | None:
    """What some of the users that are held out will say; None where nobody asks.

    ConfigError where nobody is held out, or fewer than so many; Infeasible where they are too few to tell.
    """
    share, privacy = config.train.holdout, config.privacy
    if share is None:
        return None
    if not isinstance(population, TablePopulation):
        raise ConfigError(
            "Expected train.holdout where users are a table's, got made-up users, of whom nobody is held out. Leave "
            'it out, or set population.kind = "table".'
        )
    wanted, there = held_users(population.everybody, share), population.held_out.users
    if wanted > there:
        raise ConfigError(
            f"Expected train.holdout={share:g} to be of the {there:,} users that a simulation holds out of "
            f"{population.everybody:,}, got {wanted:,}. Lower it, or raise population.test_fraction."
        )
    held = HeldOut.calibrate(
        users=wanted,
        classes=len(outcomes(population.encoding.label)),
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        adjacency=adjacency,
        cap=config.population.items_per_user or population.items_per_user,
    )
    figures.require_telling(held, privacy.epsilon)
    return held


def told_by_held_out(config: Config, population: Population, model: NDArray[np.float64], adjacency: Adjacency) -> Told:
    """Figures of a model (d,), with 95 % intervals; of a method without privacy, too."""
    held, privacy = held_out_release(config, population, adjacency), config.privacy
    if held is None or not isinstance(population, TablePopulation):
        return {}
    scorer, everybody = Scorer(model, population.loss, population.encoding), population.held_out.users
    some = population.held_out.of(np.flatnonzero(held_out(SeededNoise(0), everybody, held.users)))
    released = measuring.release(held, scorer, lambda: [some], SeededNoise(config.run.seed))
    found = figures.read(held, scorer, released, ReleaseGuarantee(privacy.epsilon, privacy.delta, ""))
    return {f"{each.name} per {each.per}": (each.value, each.low, each.high) for each in found.figures}
