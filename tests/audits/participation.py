"""Audits of who is there.

The minimum cohort, counts beside a mean, public participation, and persons' own limits in two runs.
"""

import math
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np

from audits.harness import Audit, case, events, ratios
from flower.test_answering_limits import values
from quoron_client.federation.client_state import Agreement, ClientState
from quoron_client.flower import answering
from quoron_client.protocol.flower_records import values_of
from quoron_client.protocol.questions import ANSWERED, MISSING, Answers, AverageGradient, Question
from quoron_privacy.accounts import gdp
from quoron_privacy.gaussian import SPARE, GaussianNoise
from quoron_privacy.histograms.min_cohort import MinCohort, calibrate, exact, noisy_count
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithm import Update
from quoron_server.algorithms.min_cohort import MET, WithMinCohort, decide, draw_limit
from quoron_server.rounds import participation_of
from quoron_server.schedule import CountLeakage

REST = (1.0, 1e-6)


@dataclass(frozen=True)
class Telling:
    """An algorithm of one round that tells how many answered, and nothing else."""

    deviation: float

    def update(self, state, answers, noise):
        told = GaussianNoise(1.0, self.deviation)
        present = float(told.release(np.array([float(answers.answered.sum())]), noise.stream("told"))[0])
        return Update(state, (told.entry(),), present=present)


class ByTheRealisedNumber(WithMinCohort):
    """Asks for the number that answered, not for what was told of it."""

    def update(self, state, answers, noise):
        told = super().update(state, answers, noise)
        met = self.counted(answers) >= self._min_cohort.needed(self._cohorts[state.round])
        return replace(told, public={"min_cohort": MET if met else "not met"})


class BeforeItIsCommitted(WithMinCohort):
    """Tells its decision before the store holds the release: a start that is killed decides again, by other noise."""

    def update(self, state, answers, noise):
        starts = [super(BeforeItIsCommitted, self).update(state, answers, Start(noise.seed, k)) for k in range(30)]
        return replace(starts[-1], public={"min_cohort": sum(start.public["min_cohort"] == MET for start in starts)})


@dataclass(frozen=True)
class Start:
    """The noise of one start of a run."""

    seed: int
    nonce: int = 0

    def stream(self, *labels):
        return SeededNoise(self.seed).stream(*labels, self.nonce)


def min_cohort_audits():
    """After how many rounds a run ends, where every round is at the edge.

    One user answers in all rounds, in none, or first not and then always.
    """
    epsilon, rounds, asked = 2.0, 3, 400
    once, edge = calibrate(0.5, epsilon, (asked,) * rounds, participations=1, rest=REST), asked // 2
    often = MinCohort(0.5, epsilon, rounds, 1.25, 2 / (epsilon - 1 / 1.25), *REST)

    def world(counts, number, min_cohort=once):
        """The number of rounds that passed."""

        def draw(size):
            stream, passed = SeededNoise(number + 1).stream("audit"), np.zeros(size)
            for i in range(size):
                limit = draw_limit(min_cohort, stream)
                while passed[i] < rounds and decide(min_cohort, counts[int(passed[i])], asked, limit, stream):
                    passed[i] += 1
            return passed

        return draw

    def quarter(min_cohort):
        return replace(
            min_cohort, threshold_scale=min_cohort.threshold_scale / 4, count_scale=min_cohort.count_scale / 4
        )

    early, late = [edge] * (rounds - 1), [asked] * (rounds - 1)
    first, last = ([edge, *early], [edge - 1, *early]), ([*late, edge], [*late, edge - 1])
    every = ([edge, edge, edge - 1], [edge - 1, edge - 1, edge - 2])
    then_there = ([edge - 1] + [edge] * (rounds - 1), [edge] + [edge - 1] * (rounds - 1))
    yield Audit(
        "min_cohort",
        epsilon,
        events(world, ends=first, delta=0.0, draws=1000),
        {
            "asked once, in the first round": case(),
            "asked once, in the last round": case(ends=last),
            "asked and there in every round": case(min_cohort=often, ends=every),
            "first absent, then there": case(min_cohort=often, ends=then_there),
        },
        {
            "a quarter of the noise": case(min_cohort=quarter(once)),
            # the exact one is 2.8
            "a quarter of the noise, asked often": case(min_cohort=quarter(often), ends=every, draws=16_000, slow=True),
            "a count without noise": case(min_cohort=MinCohort(0.5, epsilon, rounds, 0.0, 0.0, *REST), ends=last),
            "noise for one round, asked in every": case(ends=every, draws=4000),
        },
    )

    # A mean of n rows in [-1, 1] is mu-GDP; a user sends 1, or is absent: the row of zeros.
    mu, delta, alone = 1.0, 1e-2, MinCohort(0.5, 0.0, 1, 0.0, 0.0, *REST)
    claimed = gdp.epsilon_for(mu, delta)

    def beside(here, number, free=SPARE * mu):
        """A mean's release and its count's, along the line that tells them apart, in deviations."""

        def draw(size):
            stream, noise = SeededNoise(number).stream("audit"), alone.deviation(free)
            counts = np.array([noisy_count(edge + here, noise, stream) for _ in range(size)])
            means = here * mu / 2 + stream.gaussian_steps(size) * 2.0**-30
            return np.stack([means, (counts - edge) / noise], axis=1) @ np.array([mu / 2, free])

        return draw

    yield Audit(
        "a count beside a mean",
        claimed,
        events(beside, ends=(1, 0), delta=delta, draws=10_000),
        {"spare": case(least=0.4)},
        {f"composed without its mu of {free}": case(free=free) for free in (1.5 * mu, 2 * mu)},
    )

    def told(answered, number, kind=WithMinCohort):
        """What so many runs of one round show of their decision."""
        status = np.zeros(asked, np.uint8)
        status[answered:] = MISSING
        answers, here = Answers(np.zeros((asked, 1)), status), (CountLeakage(mu, released=True),)
        schedule = SimpleNamespace(cohorts=(asked,))
        made = kind(SimpleNamespace(schedule=schedule, count_leakage=lambda: here), alone, Telling(1 / mu))
        state = SimpleNamespace(round=0, limit=0, ended=False, inner=None)

        def draw(size):
            starts = [Start(10**6 * number + run) for run in range(size)]
            shown = [made.update(state, answers, start).public["min_cohort"] for start in starts]
            return np.array([float(said == MET if isinstance(said, str) else said) for said in shown])

        return draw

    yield Audit(
        "a decision by what a release tells",
        claimed,
        events(told, ends=(edge, edge - 1), delta=delta, draws=4000),
        {"as told": case(least=1e-9)},
        {
            "the number that was realised": case(kind=ByTheRealisedNumber, draws=1000),
            "told before its release is committed": case(kind=BeforeItIsCommitted, draws=600),
        },
    )


def public_participation_audits():
    """All that is told without noise: who answered, how many, whether the run ended.

    It is a function of who is there. So worlds that differ in one user's items have to tell the same, word for word; a
    twin that tells anything else once is told from it for sure.
    """
    users, rounds = 6, 3
    min_cohort = exact(0.5, (users,) * rounds, participations=rounds, rest=REST)
    sends = {
        "fine": ([1.0], ANSWERED),
        "nothing": ([0.0], MISSING),
        "broken": ([np.nan], ANSWERED),
        "far": ([1e300], ANSWERED),
    }

    def told(there, sent, by_status=False, usable=False):
        """Of users who are `there` in each round, and whose items make what is `sent`."""
        inner = SimpleNamespace(
            init=lambda: 0,
            request=lambda state, noise: Question(state, np.arange(users), AverageGradient(np.zeros((1, 1)), (1.0,))),
            update=lambda state, answers, noise: Update(state + 1, (), {}, {}),
        )
        plan = SimpleNamespace(
            schedule=SimpleNamespace(cohorts=(users,) * rounds),
            count_leakage=lambda: (CountLeakage(math.inf),) * rounds,
            guarantee=SimpleNamespace(servers=None),
        )
        run = WithMinCohort(plan, min_cohort, inner)
        state, noise, shown = run.init(), SeededNoise(1), []
        while state.round < rounds and (question := run.request(state, noise)) is not None:
            # A client that is there sends zeros, as an answer, where it has none; a broken one says so.
            status = np.array([sends[name][1] if by_status else ANSWERED for name in sent])
            came = np.where(there[state.round], status, MISSING).astype(np.uint8)
            answers = Answers.checked(np.array([sends[name][0] for name in sent]), came, largest=10.0)
            answers = answers if usable else answers.attended()
            update = run.update(state, answers, noise)
            shown.append({**update.public, **participation_of(question, answers)})
            state = update.state
        return shown

    drawn = np.random.default_rng(7).random((40, rounds, users)) < 0.6
    patterns = [*drawn.tolist(), [[True] * users] * rounds, [[False] * users] * rounds]

    def differing(sent, **twin):
        """How many attendances tell one user's items from others; some of them end for want of a minimum cohort."""
        rest = ["fine"] * (users - 1)
        pairs = [(told(there, [sent, *rest], **twin), told(there, ["fine", *rest], **twin)) for there in patterns]
        assert any(said["min_cohort"] == "not met" for one, _ in pairs for said in one)
        return float(sum(one != other for one, other in pairs))

    def absent(own):
        """How many rounds differ where one user is absent, which zero-out would call neighbours."""
        rest = [True] * (users // 2 - 1) + [False] * (users // 2)
        one, other = (told([[here, *rest]] * rounds, ["fine"] * users) for here in (True, own))
        return float(sum(said != heard for said, heard in zip(one, other, strict=False)) + abs(len(one) - len(other)))

    yield Audit(
        "public participation",
        0.0,
        differing,
        {sent: case(sent=sent) for sent in sends},
        {
            "a status that data move": case(sent="nothing", by_status=True),
            "a count of usable answers, broken": case(sent="broken", usable=True),
            "a count of usable answers, far": case(sent="far", usable=True),
        },
    )
    yield Audit("participation of neighbours", 0.0, absent, {"there": case(own=True)}, {"zero-out": case(own=False)})

    mu, rate, inside = 2.0, 0.1, 2.0

    def log_ratios(named):
        """Of a secret coin that asks one user or the other: a noisy sum, and who of both is `named` as missing.

        Draws under the user's own items, against those of which nothing is seen.
        """
        rng = np.random.default_rng(1)
        asked = rng.random(20_000) < rate
        known = mu * (asked * mu + rng.standard_normal(len(asked))) - mu**2 / 2
        return np.where(asked, known, 0.0) if named else np.log1p(rate * np.expm1(known))

    yield Audit(
        "names beside secret cohorts",
        rate * gdp.delta_for(mu, inside),
        ratios(log_ratios, epsilon=math.log1p(rate * math.expm1(inside))),
        {"secret": case(named=False)},
        {"named": case(named=True)},
    )


def own_limit_audits():
    """Two runs with a real record: who is absent in the second tells nothing of whom the first had drawn.

    Exact: one person is drawn by a coin of ½ and, if drawn, answers its bit with randomised response; who is there in
    the second run is told, as with public participation.
    """
    drawn_epsilon, second_epsilon, anna = 3.0, 0.1, np.zeros(1, np.int64)
    amplified = math.log(1 + (math.exp(drawn_epsilon) - 1) / 2)  # what the first run promises, by the coin
    limit = amplified + second_epsilon / 2  # either fits, and both do not

    def by_record(folder, drawn):
        """Whether she may answer in the second run, after the first had drawn her or had not."""
        with ClientState(folder / f"{drawn}.sqlite", epsilon=limit, delta=1.0) as record:
            record.register(["anna"])
            assert record.agree(Agreement("first", b"t", amplified, 0.0, 1)) is None
            if drawn:
                assert record.keep("first", 0, b"q", b"a", anna) == b"a"
            record.end("first")
            record.agree(Agreement("second", b"t", second_epsilon, 0.0, 1))
            return bool(record.may_answer("second", 0, anna)[0][0])

    def by_node(folder, drawn, announced=True):
        """The same of a node of Flower, by its ClientApp's replies: it hears of every run before anybody is asked."""
        config = {"state": str(folder / f"{drawn}-{announced}.sqlite")}
        config |= {"limit": f"{limit},1"}
        context = SimpleNamespace(node_config=config)

        def said(sent):
            return values_of(answering._reply(sent, context, lambda model: model))

        def heard(run):
            return {name: value for name, value in values(**run).items() if name != "question"}

        names = (("one", amplified), ("two", second_epsilon))
        first, second = ({"run": name, "epsilon": epsilon, "delta": 0.0} for name, epsilon in names)
        if announced:
            assert "agreed" in said(heard(first))
        assert ("answer" in said(values(**first))) == announced
        said({"run": "one", "how": "complete"})
        return "agreed" in said(heard(second))

    def loss(there):
        """The largest log-likelihood ratio of what both runs tell, for her bit."""
        with TemporaryDirectory() as folder:
            present = [there(Path(folder), drawn) for drawn in (False, True)]
        laws = []
        for bit in (0, 1):
            law = {}
            for drawn, said in product((False, True), (0, 1)):
                truth = 1 / (1 + math.exp(-drawn_epsilon if said == bit else drawn_epsilon))
                seen = said, present[drawn]
                law[seen] = law.get(seen, 0.0) + 0.5 * (truth if drawn else 0.5)
            laws.append(law)
        return max(abs(math.log(laws[1][seen] / laws[0][seen])) for seen in laws[0])

    yield Audit(
        "own limits in two runs",
        amplified + second_epsilon,
        loss,
        {"by record": case(there=by_record), "by node": case(there=by_node)},
        {
            "anyone who was not asked is not charged": case(there=lambda folder, drawn: not drawn),
            "a node that agrees with its first question": case(
                there=lambda folder, drawn: by_node(folder, drawn, announced=drawn)
            ),
        },
    )


AUDITS = [*min_cohort_audits(), *public_participation_audits(), *own_limit_audits()]
