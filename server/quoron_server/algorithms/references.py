"""The papers that algorithms come from, once each, and rows of their tables that nobody can run, with the reason.

    >>> origin = repaired(GHAZI_2026.at("Algorithms 1 and 2"))
    >>> print(origin)
    repaired: Ghazi, Kumar, Liu & Manurangsi (2026), Algorithms 1 and 2

For `quoron show algorithms`, CITATION.cff and references.bib. Fields are those of the published versions, as their own
pages, public indices or the bibliographies of the four papers print them. What could not be checked is left out.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from quoron_privacy.errors import Infeasible
from quoron_server.plan import Privacy, TrustModel
from quoron_server.problem import Problem

# theirs: the published steps in their order; sizes, averages and noise are the plan's, and a user may stand where the
# paper has an example. repaired: a published step is changed because a proof needs it. ours: no paper prints these
# steps, those that are named come closest. For people: docs/papers/README.md.
Relation = Literal["theirs", "repaired", "ours"]

_PROCEEDINGS = "Proceedings of Machine Learning Research"
_NEURIPS = "Advances in Neural Information Processing Systems"


@dataclass(frozen=True, slots=True)
class Reference:
    """One paper. It is in proceedings, in a journal, or on arXiv alone."""

    key: str  # of its BibTeX entry
    authors: tuple[str, ...]  # "Family, Given", in the order of the paper
    title: str
    year: int
    booktitle: str | None = None
    journal: str | None = None
    series: str | None = None
    volume: int | None = None
    number: int | None = None
    pages: tuple[int, int] | None = None
    eprint: str | None = None  # number on arXiv
    url: str | None = None

    @property
    def short(self) -> str:
        """The authors' family names and the year, as texts cite it."""
        names = [author.partition(",")[0] for author in self.authors]
        if len(names) > 4:
            return f"{names[0]} et al. ({self.year})"
        return f"{' & '.join(filter(None, (', '.join(names[:-1]), names[-1])))} ({self.year})"

    def at(self, where: str = "") -> "Source":
        """This paper, at these algorithms or sections of it."""
        return Source(self, where)


@dataclass(frozen=True, slots=True)
class Source:
    """A paper, and where in it an algorithm is."""

    reference: Reference
    where: str = ""  # its algorithms or sections by number; empty for the whole paper

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.reference.short, self.where)))


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose an algorithm is, and the papers that it comes from."""

    relation: Relation
    sources: tuple[Source, ...]  # the one that it follows first
    note: str = ""  # what is changed, or was not at hand

    def __str__(self) -> str:
        link = ", after " if self.relation == "ours" else ": "
        return link.join(filter(None, (self.relation, self.papers)))

    @property
    def papers(self) -> str:
        """The sources, as texts cite them."""
        return "; ".join(map(str, self.sources))

    @property
    def references(self) -> tuple[Reference, ...]:
        """The papers, each once."""
        return tuple(dict.fromkeys(source.reference for source in self.sources))


def theirs(*sources: Source, note: str = "") -> Origin:
    """Return the origin of an algorithm whose steps are the published ones."""
    return Origin("theirs", sources, note)


def repaired(*sources: Source, note: str = "") -> Origin:
    """Return the origin of an algorithm with a published step changed because a proof needs it."""
    return Origin("repaired", sources, note)


def ours(*sources: Source, note: str = "") -> Origin:
    """Return the origin of an algorithm that no paper prints, after those that come closest."""
    return Origin("ours", sources, note)


GHAZI_2026 = Reference(
    key="ghazi2026nearly",
    authors=("Ghazi, Badih", "Kumar, Ravi", "Liu, Daogao", "Manurangsi, Pasin"),
    title="Nearly Linear-Time User-Level DP-SCO with Optimal Rates",
    year=2026,
    booktitle="Proceedings of the Thirty-Ninth Conference on Learning Theory",
    series=_PROCEEDINGS,
    volume=336,
    pages=(2601, 2636),
    url="https://proceedings.mlr.press/v336/ghazi26a.html",
)
LOWY_2024 = Reference(
    key="lowy2024faster",
    authors=("Lowy, Andrew", "Liu, Daogao", "Asi, Hilal"),
    title="Faster Algorithms for User-Level Private Stochastic Convex Optimization",
    year=2024,
    booktitle=_NEURIPS,
    volume=37,
    eprint="2410.18391",
)
BASSILY_SUN_2023 = Reference(
    key="bassily2023user",
    authors=("Bassily, Raef", "Sun, Ziteng"),
    title="User-level Private Stochastic Convex Optimization with Optimal Rates",
    year=2023,
    booktitle="Proceedings of the 40th International Conference on Machine Learning",
    series=_PROCEEDINGS,
    volume=202,
    pages=(1838, 1851),
)
CHOQUETTE_CHOO_2025 = Reference(
    key="choquettechoo2025near",
    authors=("Choquette-Choo, Christopher A.", "Ganesh, Arun", "Thakurta, Abhradeep"),
    title="Near-Optimal Rates for O(1)-Smooth DP-SCO with a Single Epoch and Large Batches",
    year=2025,
    booktitle="Proceedings of the 36th International Conference on Algorithmic Learning Theory",
    series=_PROCEEDINGS,
    volume=272,
    pages=(315, 348),
    eprint="2406.02716",
    url="https://proceedings.mlr.press/v272/choquette-choo25a.html",
)
THE_FOUR = (GHAZI_2026, LOWY_2024, BASSILY_SUN_2023, CHOQUETTE_CHOO_2025)  # that docs/papers reads line by line

ABADI_2016 = Reference(
    key="abadi2016deep",
    authors=(
        *("Abadi, Martin", "Chu, Andy", "Goodfellow, Ian", "McMahan, H. Brendan", "Mironov, Ilya"),
        *("Talwar, Kunal", "Zhang, Li"),
    ),
    title="Deep Learning with Differential Privacy",
    year=2016,
    booktitle="Proceedings of the 2016 ACM SIGSAC Conference on Computer and Communications Security",
    pages=(308, 318),
)
ASI_LIU_2024 = Reference(
    key="asi2024user",
    authors=("Asi, Hilal", "Liu, Daogao"),
    title="User-level Differentially Private Stochastic Convex Optimization: Efficient Algorithms with Optimal Rates",
    year=2024,
    booktitle="International Conference on Artificial Intelligence and Statistics",
    pages=(4240, 4248),
    eprint="2311.03797",
)
CHOQUETTE_CHOO_2023 = Reference(
    key="choquettechoo2023multi",
    authors=("Choquette-Choo, Christopher A.", "McMahan, H. Brendan", "Rush, Keith", "Thakurta, Abhradeep"),
    title="Multi-Epoch Matrix Factorization Mechanisms for Private Machine Learning",
    year=2023,
    booktitle="Proceedings of the 40th International Conference on Machine Learning",
    series=_PROCEEDINGS,
    volume=202,
    eprint="2211.06530",
)
DWORK_2014 = Reference(
    key="dwork2014analyze",
    authors=("Dwork, Cynthia", "Talwar, Kunal", "Thakurta, Abhradeep", "Zhang, Li"),
    title="Analyze Gauss: Optimal Bounds for Privacy-Preserving Principal Component Analysis",
    year=2014,
    booktitle="ACM Symposium on Theory of Computing",
)
FELDMAN_2020 = Reference(
    key="feldman2020private",
    authors=("Feldman, Vitaly", "Koren, Tomer", "Talwar, Kunal"),
    title="Private Stochastic Convex Optimization: Optimal Rates in Linear Time",
    year=2020,
    booktitle="Proceedings of the 52nd Annual ACM SIGACT Symposium on Theory of Computing",
    pages=(439, 449),
)
GHAZI_2023 = Reference(
    key="ghazi2023user",
    authors=(
        *("Ghazi, Badih", "Kamath, Pritish", "Kumar, Ravi", "Manurangsi, Pasin", "Meka, Raghu"),
        "Zhang, Chiyuan",
    ),
    title="On User-Level Private Convex Optimization",
    year=2023,
    booktitle="Proceedings of the 40th International Conference on Machine Learning",
    series=_PROCEEDINGS,
    volume=202,
    pages=(11283, 11299),
    eprint="2305.04912",
)
KAIROUZ_2021 = Reference(
    key="kairouz2021practical",
    authors=(
        *("Kairouz, Peter", "McMahan, Brendan", "Song, Shuang", "Thakkar, Om", "Thakurta, Abhradeep"),
        "Xu, Zheng",
    ),
    title="Practical and Private (Deep) Learning Without Sampling or Shuffling",
    year=2021,
    booktitle="Proceedings of the 38th International Conference on Machine Learning",
    series=_PROCEEDINGS,
    eprint="2103.00039",
)
LEVY_2021 = Reference(
    key="levy2021learning",
    authors=(
        *("Levy, Daniel", "Sun, Ziteng", "Amin, Kareem", "Kale, Satyen", "Kulesza, Alex", "Mohri, Mehryar"),
        "Suresh, Ananda Theertha",
    ),
    title="Learning with User-Level Privacy",
    year=2021,
    booktitle=_NEURIPS,
    volume=34,
    pages=(12466, 12479),
)
MCMAHAN_2018 = Reference(
    key="mcmahan2018learning",
    authors=("McMahan, H. Brendan", "Ramage, Daniel", "Talwar, Kunal", "Zhang, Li"),
    title="Learning Differentially Private Recurrent Language Models",
    year=2018,
    booktitle="International Conference on Learning Representations",
)
POLYAK_1992 = Reference(
    key="polyak1992acceleration",
    authors=("Polyak, B. T.", "Juditsky, A. B."),
    title="Acceleration of Stochastic Approximation by Averaging",
    year=1992,
    journal="SIAM Journal on Control and Optimization",
    volume=30,
    number=4,
    pages=(838, 855),
    url="https://epubs.siam.org/doi/10.1137/0330046",
)
WANG_2018 = Reference(
    key="wang2018revisiting",
    authors=("Wang, Yu-Xiang",),
    title="Revisiting Differentially Private Linear Regression: Optimal and Adaptive Prediction & Estimation in "
    "Unbounded Domain",
    year=2018,
    booktitle="Conference on Uncertainty in Artificial Intelligence",
    eprint="1803.02596",
)
WANG_2019 = Reference(
    key="wang2019subsampled",
    authors=("Wang, Yu-Xiang", "Balle, Borja", "Kasiviswanathan, Shiva"),
    title="Subsampled Renyi Differential Privacy and Analytical Moments Accountant",
    year=2019,
    booktitle="Proceedings of the Twenty-Second International Conference on Artificial Intelligence and Statistics",
    series=_PROCEEDINGS,
    volume=89,
    pages=(1226, 1235),
    eprint="1808.00087",
)
ZHANG_ONLINE_2022 = Reference(
    key="zhang2022online",
    authors=("Zhang, Qinzi", "Tran, Hoang", "Cutkosky, Ashok"),
    title="Differentially Private Online-to-Batch for Smooth Losses",
    year=2022,
    booktitle=_NEURIPS,
    volume=35,
    eprint="2210.06593",
)


@dataclass(frozen=True, slots=True)
class Refused:
    """One line of `quoron show algorithms` that has no plan."""

    name: str
    summary: str
    source: Source
    trust_model: TrustModel
    theorem: str  # the page that says why

    @property
    def paper(self) -> str:
        """The paper that describes it."""
        return str(self.source)

    def refuse(self, problem: Problem, privacy: Privacy) -> Infeasible:
        """Return why there is no plan here, with the count."""
        kappa = deletions(privacy.epsilon, privacy.delta)
        digits = subsets(problem.users, kappa)
        return Infeasible(
            self.name,
            f"its search for a stable set minimises over all subsets, {kappa} deleted of n={problem.users:,} users, "
            f"10^{digits:.1f} of them",
            "a shortcut for general convex losses; we know of none",
        )


def deletions(epsilon: float, delta: float) -> int:
    """κ = 1 + ⌈ln(1/δ)/ε⌉: how far from stable a noisy test must be able to tell sets, with chance 1 - δ."""
    return 1 + math.ceil(math.log(1 / delta) / epsilon)


def subsets(users: int, deleted: int) -> float:
    """log10 of the number of ways to delete `deleted` of `users`; 0 where there are not as many.

    Ghazi et al. (2023) look for a stable set of users: a subset of which, after up to κ deletions, the empirical
    minimiser moves little under all further deletions of order κ; it is then released with noise. For general convex
    losses we know no search but to minimise over every subset. This counts *that search*; it does not prove that there
    is no other.

        >>> round(subsets(100_000, deletions(1.0, 1e-6)), 1)  # decimal digits
        62.9
    """
    if deleted >= users:
        return 0.0
    ways = math.lgamma(users + 1) - math.lgamma(deleted + 1) - math.lgamma(users - deleted + 1)
    return ways / math.log(10)


STABLE_SETS = Refused(
    name="ghazi-2023",
    summary="Search for a stable set of users, then output perturbation; refused: its search is super-polynomial",
    source=GHAZI_2023.at(),
    trust_model="central-release",
    theorem="docs/results.md",
)
REFUSED: Mapping[str, Refused] = MappingProxyType({each.name: each for each in (STABLE_SETS,)})
