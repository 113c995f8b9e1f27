"""What a run reached and what it cost, as one typed object: printed, written as JSON, shown in the report."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quoron.planning.forecasts import Forecast
from quoron.reports.page import ONLY
from quoron.results import Printed, size

NOTICED = 1e-3  # share of the excess risk from which on it is said what a bound costs


@dataclass(frozen=True, slots=True, repr=False)
class Summary(Printed):
    """One run. Figures of private data are there because this is a simulation."""

    algorithm: str
    statement: str  # the guarantee, in one sentence
    rounds: int  # rounds of adaptive interaction
    messages: int  # answers asked for
    bytes_up: int  # float64 payload from clients
    bytes_down: int  # float64 payload to clients
    gradient_evaluations: int  # item gradients at the nominal items per user
    users_asked: int  # different users, at most: the smaller of all users and all answers asked for
    users_filtered_simulation_only: int | None  # removed by a filter; None without one
    halted: bool  # whether a phase ended because its concentration test failed
    epsilon: float | None  # None without privacy
    delta: float
    adjacency: str
    trust_model: str
    excess_risk: float | None = None  # over the infimum on the population, in the domain or not; None: not measured
    excess_risk_initial: float | None = None  # of the start point
    predicted_excess_risk: float | None = None  # by the plan, before the run: a bound; None: nobody has measured one
    guessed_excess_risk: float | None = None  # by the planner's model, before the run
    held_back: float = 0.0  # excess risk of the best model of the domain: of it all, what its bound costs
    test: Mapping[str, float] = field(default_factory=dict)  # on held-out users
    test_without_privacy: Mapping[str, float] = field(default_factory=dict)  # the same of the non-private optimum
    test_start: Mapping[str, float] = field(default_factory=dict)  # of the start point
    test_baseline: Mapping[str, float] = field(default_factory=dict)  # of always answering the majority, or the mean
    test_unbounded: Mapping[str, float] = field(default_factory=dict)  # of the optimum without the domain's bound
    unfit_simulation_only: Mapping[str, float] = field(default_factory=dict)  # by column, share that does not fit
    remarks_simulation_only: tuple[str, ...] = ()  # what is amiss with the data or the model, each with its fix
    private: bool = False  # never: its noise comes from a seed, and figures of private data stand beside the model
    simulation_seed: int = 0
    seconds: float = 0.0
    peak_memory_bytes: int = 0  # of this process
    choice: str | None = None  # why an automatic choice took the algorithm; None when it was named
    forecast: Forecast | None = None  # what the predicted risk means for the label (planning.forecasts)
    afterwards: Forecast | None = None  # the same of a bound made of what the run released, by methods that do
    mu: float | None = None  # with secret noise all of it would be μ-GDP up to `variation`; None: nothing is proved
    variation: float = 0.0
    users_held_out: int = 0  # of a table: never asked, so that figures can be of them; `quoron train` asks them too

    @property
    def excess_in_domain(self) -> float | None:
        """Excess risk over the best model of the domain, which is what plans predict."""
        return None if self.excess_risk is None else max(0.0, self.excess_risk - self.held_back)

    @property
    def is_held_back(self) -> bool:
        """Whether the bound of the domain costs anything to speak of."""
        return self.excess_risk is not None and self.held_back > NOTICED * self.excess_risk

    def rows(self) -> list[tuple[str, str]]:
        """Return the label and text of each line."""
        return [*self.method(), *self.quality(), *self.costs()]

    def method(self) -> list[tuple[str, str]]:
        """Return what was carried out, and what it promises."""
        held_out = f" ({self.users_held_out:,} more are held out, to measure the model)" if self.users_held_out else ""
        rows = [
            ("algorithm", self.algorithm),
            ("privacy of one user", self._promise()),
            ("rounds", f"{self.rounds:,}" + (" (a phase was halted: it released nothing new)" if self.halted else "")),
            ("users asked", f"{self.users_asked:,}{held_out}"),
        ]
        if self.users_filtered_simulation_only is not None:
            rows.append((f"users filtered{ONLY}", f"{self.users_filtered_simulation_only:,}"))
        return rows

    def quality(self) -> list[tuple[str, str]]:
        """Return how good the model is, by private data."""
        rows: list[tuple[str, str]] = []
        if self.excess_risk is not None:
            rows.append(("excess risk", f"{self.excess_risk:.2g}{self._beside()}"))
        if self.forecast is not None and (words := self.forecast.words()):
            rows.append(("that was predicted to be", words))
        if self.excess_in_domain is not None and self.is_held_back:
            cost, inside = f"{self.held_back:.2g}", f"{self.excess_in_domain:.2g}"
            rows.append(("of that by the domain's bound", f"{cost}; over the best in it {inside}"))
        return rows + [(f"held-out {name.replace('_', ' ')}", self._tested(name)) for name in self.test]

    def costs(self) -> list[tuple[str, str]]:
        """Return what the run took, and what of the table does not fit."""
        rows = []
        if self.unfit_simulation_only:
            shares = ", ".join(f"{name} {100 * share:.2g} %" for name, share in self.unfit_simulation_only.items())
            rows.append((f"values that do not fit{ONLY}", shares))
        rows += [
            ("messages", f"{self.messages:,}"),
            ("payload up, down", f"{size(self.bytes_up)}, {size(self.bytes_down)}"),
            ("gradient evaluations", f"{self.gradient_evaluations:,}"),
        ]
        return [*rows, (f"time, peak memory{ONLY}", f"{self.seconds:.1f} s, {size(self.peak_memory_bytes)}")]

    def _promise(self) -> str:
        if self.trust_model == "none":
            return "none: the non-private reference"
        if self.epsilon is None or math.isinf(self.epsilon):
            return "none was found for the numbers that the paper prints"
        return f"ε = {self.epsilon:g}, δ = {self.delta:g}, {self.adjacency}, trust model {self.trust_model}"

    def _beside(self) -> str:
        bound = "predicted at most" + ", in its domain" * self.is_held_back
        known = [(bound, self.predicted_excess_risk)]
        if self.predicted_excess_risk is None:
            known = [("by a guess that nobody has measured", self.guessed_excess_risk)]
        if self.afterwards is not None:
            known.append(("by what the run released at most", self.afterwards.excess_risk))
        known.append(("at the start", self.excess_risk_initial))
        parts = [f"{word} {value:.2g}" for word, value in known if value is not None]
        return f" ({', '.join(parts)})" if parts else ""

    def _tested(self, name: str) -> str:
        best, unbounded = self.test_without_privacy.get(name), self.test_unbounded.get(name)
        known = [
            ("without privacy", best),
            ("and without the domain's bound", None if unbounded == best else unbounded),
            ("always the same answer", self.test_baseline.get(name)),
            ("at the start", self.test_start.get(name)),
        ]
        parts = [f"{word} {value:.4g}" for word, value in known if value is not None]
        return f"{self.test[name]:.4g}" + (f" ({', '.join(parts)})" if parts else "")


@dataclass(frozen=True, slots=True)
class Choice:
    """What a search chose, and what it cost."""

    name: str  # of the setting, for people
    varied: Mapping[str, Any]  # its keys and values
    algorithm: str
    score: float  # of the best trial, with noise: of the best of several, so rather too high
    score_name: str
    score_noise: float  # standard deviation of it
    price: Mapping[str, Any]  # of the whole search, and of one trial

    def rows(self) -> list[tuple[str, str]]:
        """Label and text of each line people see."""
        cost, score = self.price, f"{self.score:.4g} ± {self.score_noise:.2g}"
        return [
            ("chosen", self.name),
            (f"its {self.score_name}", f"{score} (the best of several: rather too high)"),
            ("the whole search", f"ε = {cost['epsilon']:.4g} at δ = {cost['delta']:g}; trials: {cost['trials']}"),
            ("one trial", f"ε = {cost['trial_epsilon']:.4g} at the same δ"),
        ]
