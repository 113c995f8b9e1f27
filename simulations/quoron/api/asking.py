"""How many users or which ε would do, what each ε allows, and what an excess risk means in accuracy.

Accuracy is a figure of the data, for simulations only. A released model is off the optimum by noise; here it is off in
random directions, each so far that the excess risk is the one asked about, and the accuracies of such models on users
that are not trained on are averaged.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from quoron.config import Config, TableSection, is_wanted
from quoron.data import Population
from quoron.data.table import binary, classes
from quoron.data.users import Vector, held_back
from quoron.paths import PACKAGED
from quoron.planning.plans import choose
from quoron.planning.questions import Advice, Enough, Planner, enough, epsilon_curve, wanted_risk
from quoron.simulation.problem import problem_for_real, setup
from quoron.simulation.sources import Frame, needed
from quoron.training import estimated
from quoron.training import run as training
from quoron_client.losses import Classification
from quoron_privacy.errors import ConfigError, Infeasible, QuoronError, RunError
from quoron_server.plan import RunPlan
from quoron_server.problem import Problem

DIRECTIONS = 4
SAMPLE = 2_000  # users whose items are read where none are held out
STEPS = 30  # towards one risk, at most; a handful do


def advice_for(
    config: Config, frame: Frame, *, risk: str | float | None, accuracy: float | None, epsilons: bool
) -> Advice:
    """Return what would do for a risk or an accuracy, and with `epsilons` what each ε allows: see `quoron.plan`."""
    if risk is not None and accuracy is not None:
        raise ConfigError("Expected a risk or an accuracy to ask about, got both.")
    if is_wanted(config, simulated=True):
        if accuracy is None:
            return _before_estimates(config, frame, risk=risk, epsilons=epsilons)
        config, _ = training.simulated(config, Path.cwd(), frame)
    table, config = needed(frame, config)
    scene = setup(config, Path.cwd(), table)
    problem = problem_for_real(config, scene.population)
    with suppress(Infeasible, RunError):  # a wrong request is one for every number of users and every epsilon
        choose(config, problem, alternatives=False)
    if accuracy is not None:
        found = replace(enough(config, problem, risk_of(scene.population, accuracy)), accuracy=accuracy)
    elif risk is not None:
        found = enough(config, problem, wanted_risk(str(risk), problem))
    else:
        found = None
    if not epsilons:
        return Advice(None, found)
    points = epsilon_curve(config, problem)
    if speaks_of_accuracy(scene.population) and (accuracy is not None or _is_public(config)):
        risks = [point.risk for point in points]
        accuracies = [None if each is None else accuracy_of(scene.population, each) for each in risks]
        points = tuple(replace(point, accuracy=each) for point, each in zip(points, accuracies, strict=True))
    return Advice(points, found)


def _before_estimates(config: Config, frame: Frame, *, risk: str | float | None, epsilons: bool) -> Advice:
    """What would do for a table with columns still to be estimated: for the fewest coefficients and the most."""
    asked, users = estimated.undeclared(config, Path.cwd(), frame)

    def of(width: int) -> tuple[Problem, Planner]:
        def plan(config: Config, problem: Problem) -> RunPlan | QuoronError:
            try:
                return estimated.plan_of_width(config, asked, problem.users, width)
            except QuoronError as error:
                return error

        return estimated.problem_of_width(config, asked, users, width), plan

    def would_do(problem: Problem, plan: Planner) -> Enough:
        found = enough(config, problem, wanted_risk(str(risk), problem), plan=plan)
        return replace(found, coefficients=problem.dimension)

    narrow, wide = of(1), of(estimated.WIDEST) if estimated.any_text(asked) else None
    return Advice(
        epsilon_curve(config, narrow[0], plan=narrow[1]) if epsilons else None,
        None if risk is None else would_do(*narrow),
        None if risk is None or wide is None else would_do(*wide),
    )


def _is_public(config: Config) -> bool:
    """Whether users are made up, or ship with quoron."""
    return not isinstance(config.population, TableSection) or config.population.path.startswith(PACKAGED)


def speaks_of_accuracy(population: Population) -> bool:
    """Whether labels are classes."""
    return isinstance(population.loss, Classification) or population.loss.outputs > 1


def accuracy_of(population: Population, risk: float, *, directions: int = DIRECTIONS) -> float:
    """Mean accuracy in [0, 1] of models with this excess risk. ConfigError where labels are not classes."""
    measure, random = _measure(population), np.random.default_rng(0)
    best = population.optimum
    found = [measure(_off(population, best, random.standard_normal(len(best)), risk)) for _ in range(directions)]
    return float(np.mean(found))


def risk_of(population: Population, accuracy: float) -> float:
    """The largest excess risk, up to the start's, whose models have at least this accuracy; ConfigError if none has."""
    best = accuracy_of(population, 0.0, directions=1)
    if not 0 < accuracy <= best:
        raise ConfigError(
            f"Expected an accuracy of at most {best:.4g}, which the best model without privacy has here, "
            f"got {accuracy:g}."
        )
    high = _inside(population, np.zeros_like(population.optimum))
    low = high * 1e-9
    if accuracy_of(population, high) >= accuracy:
        return high
    while high / low > 1.01:
        middle = float(np.sqrt(low * high))
        if accuracy_of(population, middle) >= accuracy:
            low = middle
        else:
            high = middle
    return low


def _inside(population: Population, model: Vector) -> float:
    """Excess risk over the best model of the domain, as plans predict it."""
    return population.excess_risk(model) - held_back(population)


def _measure(population: Population) -> Callable[[Vector], float]:
    """Accuracy of a model on held-out users, or on a sample where users are made up."""
    loss = population.loss
    if not speaks_of_accuracy(population):
        raise ConfigError(
            f"Expected labels that are classes to speak of accuracy, got the {loss.name} loss. Ask for a risk instead."
        )
    if "accuracy" in population.test_metrics(population.optimum):
        return lambda model: population.test_metrics(model)["accuracy"]
    items = population.items(np.arange(min(population.users, SAMPLE)))
    features, labels = items.features.astype(np.float64), items.labels
    if loss.outputs > 1:
        return lambda model: classes(features @ model.reshape(loss.outputs, -1).T, labels)["accuracy"]
    return lambda model: binary(features @ model, labels)["accuracy"]


def _off(population: Population, best: Vector, direction: Vector, risk: float) -> Vector:
    """The model in a direction from the optimum whose excess risk is `risk`, or the last one of the domain."""
    unit = direction / np.linalg.norm(direction)
    most = 2 * population.domain.norm_bound(len(best))
    length = most if risk > 0 else 0.0
    for _ in range(STEPS):  # about as the square of the length: Newton's steps, on a logarithmic scale
        model = population.domain.project(best + length * unit)
        excess = _inside(population, model) if length > 0 else 0.0
        if abs(excess - risk) <= 1e-3 * risk or (length == most and excess < risk):
            break
        length = min(length * math.sqrt(risk / max(excess, 1e-300)), most)
    return model
