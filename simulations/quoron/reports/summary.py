"""What a run reached and what it cost, as one typed object: printed, written as JSON, shown in the report."""

import math
import resource
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from quoron.engine.network import duration
from quoron.engine.processors import largest
from quoron.planning.meaning import Meaning, meaning
from quoron.results import Printed
from quoron_server.plan import RunPlan
from quoron_server.wording import sentence

if TYPE_CHECKING:  # a stored summary needs no population
    from quoron.data.users import Beside
    from quoron_server.parameters import GaussianPromise

OF_RELEASES = frozenset(  # labels of rows that follow from what is public or released; all others are of private data
    {
        "algorithm",
        "privacy of one user",
        "rounds",
        "users asked",
        "messages",
        "payload up, down",
        "messages up, down",
        "once up, down",
        "bytes up, down",
        "gradient evaluations",
        "silos",
        "that was predicted to be",
    }
)
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
    excess_risk: float | None  # over the infimum on the population, in the domain or not
    excess_risk_initial: float | None  # of the start point
    predicted_excess_risk: float | None  # by the plan, before the run: a bound; None where nobody has measured one
    guessed_excess_risk: float | None = None  # by the planner's model, before the run
    held_back: float = 0.0  # excess risk of the best model of the domain: of it all, what its bound costs
    test: Mapping[str, float] = field(default_factory=dict)  # on held-out users
    test_without_privacy: Mapping[str, float] = field(default_factory=dict)  # the same of the non-private optimum
    test_start: Mapping[str, float] = field(default_factory=dict)  # of the start point
    test_baseline: Mapping[str, float] = field(default_factory=dict)  # of always answering the majority, or the mean
    test_unbounded: Mapping[str, float] = field(default_factory=dict)  # of the optimum without the domain's bound
    clipped_simulation_only: Mapping[str, float] = field(default_factory=dict)  # by column, share outside its range
    remarks_simulation_only: tuple[str, ...] = ()  # what is amiss with the data or the model, each with its fix
    private: bool = False  # never: its noise comes from a seed, and figures of private data stand beside the model
    simulation_seed: int = 0
    seconds: float = 0.0
    peak_memory_bytes: int = 0  # of this process and those below it, shared pages once
    choice: str | None = None  # why an automatic choice took the algorithm; None when it was named
    wire_up: int = 0  # bytes from clients as on the wire: answers
    wire_down: int = 0  # bytes to clients as on the wire: questions
    once_up: int = 0  # bytes on the wire from all clients once: handshakes, enrolment, the run's announcement, its end
    once_down: int = 0  # the same to them
    network: Mapping[str, Any] | None = None  # projected wall-clock by part; None without a network
    forecast: Mapping[str, Any] | None = None  # what the predicted risk means for the label (planning.meaning)
    afterwards: Mapping[str, Any] | None = None  # the same of a bound made of what the run released, by methods that do
    mu: float | None = None  # with secret noise all of it would be μ-GDP up to `variation`; None: nothing is proved
    variation: float = 0.0
    told: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)  # what some of these tell, privately
    users_held_out: int = 0  # of a table: never asked, so that figures can be of them; `quoron train` asks them too
    silos: Mapping[str, float] = field(default_factory=dict)  # how many, the largest, what they sent; none without

    @classmethod
    def of(
        cls,
        plan: RunPlan,
        events: Sequence[Mapping[str, Any]],
        *,
        excess_risk: float | None,
        excess_risk_initial: float | None,
        test: Mapping[str, float],
        test_without_privacy: Mapping[str, float],
        beside: "Beside",
        simulation_seed: int,
        seconds: float,
        memory: int = 0,
        once: tuple[int, int] = (0, 0),
        choice: str | None = None,
        traffic: Sequence[Mapping[str, Any]] = (),
        network: Mapping[str, Any] | None = None,
        told: Mapping[str, tuple[float, float, float]] | None = None,
        users_held_out: int = 0,
        worth: "GaussianPromise | None" = None,
        silos: Sequence[int] = (),
    ) -> "Summary":
        """The summary of a complete run from its ledger's events; `memory` is of other processes than this one."""
        last = events[-1] if events else {}
        filtered = [event["diagnostics"]["filtered"] for event in events if "filtered" in event["diagnostics"]]
        private = plan.guarantee.trust_model != "none"
        read = meaning(plan.problem, plan.predicted_excess_risk)
        after = meaning(plan.problem, last.get("public", {}).get("left"))
        return cls(
            algorithm=plan.algorithm,
            statement=sentence(plan.guarantee),
            rounds=len(events),
            **{name: last.get(f"total_{name}", 0) for name in ("messages", "bytes_up", "bytes_down")},
            gradient_evaluations=last.get("total_gradient_evaluations", 0),
            users_asked=min(plan.problem.users, sum(event["asked"] for event in events)),
            users_filtered_simulation_only=sum(filtered) if filtered else None,
            halted=any(event["public"].get("halted", False) for event in events),
            epsilon=plan.guarantee.epsilon if private else None,
            delta=plan.guarantee.delta if private else 0.0,
            adjacency=plan.guarantee.adjacency,
            trust_model=plan.guarantee.trust_model,
            excess_risk=excess_risk,
            excess_risk_initial=excess_risk_initial,
            predicted_excess_risk=plan.predicted_excess_risk,
            guessed_excess_risk=plan.guessed_excess_risk,
            forecast=None if read is None else read.as_json(),
            afterwards=None if after is None else after.as_json(),
            held_back=beside.held_back,
            test=dict(test),
            test_without_privacy=dict(test_without_privacy),
            test_start=dict(beside.start),
            test_baseline=dict(beside.baseline),
            test_unbounded=dict(beside.unbounded),
            clipped_simulation_only=dict(beside.clipped),
            remarks_simulation_only=beside.remarks,
            simulation_seed=simulation_seed,
            seconds=seconds,
            peak_memory_bytes=peak_memory() + memory,
            choice=choice,
            wire_up=sum(row.get("wire_up", 0) for row in traffic),
            wire_down=sum(row.get("wire_down", 0) for row in traffic),
            once_down=once[0],
            once_up=once[1],
            network=network,
            told=dict(told or {}),
            users_held_out=users_held_out,
            mu=None if worth is None else worth.mu,
            variation=0.0 if worth is None else worth.variation,
            silos=_of_silos(silos, last.get("diagnostics", {})),
        )

    @property
    def excess_in_domain(self) -> float | None:
        """Excess risk over the best model of the domain, which is what plans predict."""
        return None if self.excess_risk is None else max(0.0, self.excess_risk - self.held_back)

    @property
    def is_held_back(self) -> bool:
        """Whether the bound of the domain costs anything to speak of."""
        return self.excess_risk is not None and self.held_back > NOTICED * self.excess_risk

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and strings."""
        return asdict(self)

    def rows(self) -> list[tuple[str, str]]:
        """Label and text of each line people see."""
        held = f" ({self.users_held_out:,} more are held out, to measure the model)" if self.users_held_out else ""
        rows = [
            ("algorithm", self.algorithm),
            ("privacy of one user", self._promise()),
            ("rounds", f"{self.rounds:,}" + (" (a phase was halted: it released nothing new)" if self.halted else "")),
            ("users asked", f"{self.users_asked:,}{held}"),
        ]
        if self.users_filtered_simulation_only is not None:
            rows.append(("users filtered (simulation only)", f"{self.users_filtered_simulation_only:,}"))
        if self.excess_risk is not None:
            rows.append(("excess risk", f"{self.excess_risk:.2g}{self._beside()}"))
        if self.forecast is not None and (words := Meaning(**self.forecast).words()):
            rows.append(("that was predicted to be", words))
        if self.excess_in_domain is not None and self.is_held_back:
            cost, inside = f"{self.held_back:.2g}", f"{self.excess_in_domain:.2g}"
            rows.append(("of that by the domain's bound", f"{cost}; over the best in it {inside}"))
        rows += [(f"held-out {name.replace('_', ' ')}", self._tested(name)) for name in self.test]
        rows += [(f"{name}, with 95 %", told_words(*told)) for name, told in self.told.items()]
        if self.clipped_simulation_only:
            shares = ", ".join(f"{name} {100 * share:.2g} %" for name, share in self.clipped_simulation_only.items())
            rows.append(("values outside their range (simulation only)", shares))
        rows += [
            ("messages", f"{self.messages:,}"),
            ("payload up, down", f"{size(self.bytes_up)}, {size(self.bytes_down)}"),
            *self._on_the_wire(),
            ("gradient evaluations", f"{self.gradient_evaluations:,}"),
        ]
        if self.silos:
            rows.append(("silos", _silo_words(self.silos)))
        if self.network is not None:
            rows += time_rows(self.network)
        rows.append(("time, peak memory with child processes", f"{self.seconds:.1f} s, {size(self.peak_memory_bytes)}"))
        return rows

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
            known.append(("by what the run released at most", self.afterwards["excess_risk"]))
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

    def _on_the_wire(self) -> list[tuple[str, str]]:
        """What TCP carries; where silos send for their users, what is sent is theirs to say."""
        if not self.wire_up or self.silos:
            return []
        clients = "handshakes, enrolment and the run's announcement, of all clients"
        whole = size(self.wire_up + self.once_up), size(self.wire_down + self.once_down)
        return [
            ("messages up, down", f"{size(self.wire_up)}, {size(self.wire_down)}: with that payload, on the wire"),
            ("once up, down", f"{size(self.once_up)}, {size(self.once_down)}: {clients}"),
            ("bytes up, down", f"{', '.join(whole)}: messages and once, without headers of TCP and IP"),
        ]


def _of_silos(sizes: Sequence[int], last: Mapping[str, float]) -> dict[str, float]:
    """How many silos of such sizes there are, and what they sent by a run's last round; {} where persons sent it."""
    moved = {name: last.get(f"total_silo_{name}", 0.0) for name in ("messages", "bytes_up", "bytes_down")}
    return {"silos": len(sizes), "largest": max(sizes), **moved} if moved["messages"] else {}


def _silo_words(silos: Mapping[str, float]) -> str:
    """What was sent by silo: one question and one answer of each that was asked, in every round."""
    who = f"{silos['silos']:,.0f}, up to {silos['largest']:,.0f} users each"
    moved = f"{size(silos['bytes_up'])}, {size(silos['bytes_down'])}"
    return f"{who}; {silos['messages']:,.0f} answers, one a round; up, down {moved}"


def told_words(value: float, low: float, high: float) -> str:
    """A figure with its interval, for people.

    >>> told_words(0.79321, 0.75, 0.8333), told_words(12345.6, 12000.0, 13000.0)
    ('0.793 (0.750 to 0.833)', '12,346 (12,000 to 13,000)')
    """
    shown = "{:,.3f}" if high < 10 else "{:,.4g}" if high < 1000 else "{:,.0f}"
    return f"{shown.format(value)} ({shown.format(low)} to {shown.format(high)})"


def from_json(stored: Mapping[str, Any]) -> Summary:
    """The summary that `as_json` gave; keys of other versions are left out."""
    known = {key: value for key, value in stored.items() if key in Summary.__dataclass_fields__}
    return Summary(**known | {"remarks_simulation_only": tuple(known.get("remarks_simulation_only", ()))})


def time_rows(projected: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Label and text of a projection as JSON: wall-clock over a network, and its parts."""
    parts = [(name, seconds) for name, seconds in projected["seconds"].items() if name != "total" and seconds > 0]
    rows = [("projected time", f"{duration(projected['seconds']['total'])} over {projected['network']}")]
    if parts:
        rows.append(("of that", ", ".join(f"{name} {duration(seconds)}" for name, seconds in parts)))
    return rows


def size(count: float) -> str:
    """Bytes for people.

    >>> size(2_500_000)
    '2.5 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def peak_memory() -> int:
    """Largest resident memory of this process so far, in bytes."""
    return largest(resource.getrusage(resource.RUSAGE_SELF))
