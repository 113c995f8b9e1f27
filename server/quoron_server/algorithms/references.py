"""The papers that algorithms come from, once each.

    >>> origin = repaired(GHAZI_2026.at("Algorithms 1 and 2"))
    >>> print(origin)
    repaired: Ghazi, Kumar, Liu & Manurangsi (2026), Algorithms 1 and 2

For `quoron show algorithms`. What else is to be said of a paper stands in docs/papers/references.bib.
"""

from dataclasses import dataclass, replace
from typing import Literal

# theirs: the published steps in their order; sizes, averages and noise are the plan's, and a user may stand where the
# paper has an example. repaired: a published step is changed because a proof needs it. ours: no paper prints these
# steps, those that are named come closest. For people: docs/papers/README.md.
Relation = Literal["theirs", "repaired", "ours"]


@dataclass(frozen=True, slots=True)
class Source:
    """A paper, and where in it an algorithm is."""

    key: str  # of its entry in docs/papers/references.bib
    short: str  # the authors' family names and the year, as texts cite it
    where: str = ""  # its algorithms or sections by number; empty for the whole paper

    def at(self, where: str) -> "Source":
        """This paper, at these algorithms or sections of it."""
        return replace(self, where=where)

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.short, self.where)))


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


def theirs(*sources: Source, note: str = "") -> Origin:
    """Return the origin of an algorithm whose steps are the published ones."""
    return Origin("theirs", sources, note)


def repaired(*sources: Source, note: str = "") -> Origin:
    """Return the origin of an algorithm with a published step changed because a proof needs it."""
    return Origin("repaired", sources, note)


def ours(*sources: Source, note: str = "") -> Origin:
    """Return the origin of an algorithm that no paper prints, after those that come closest."""
    return Origin("ours", sources, note)


GHAZI_2026 = Source("ghazi2026nearly", "Ghazi, Kumar, Liu & Manurangsi (2026)")
LOWY_2024 = Source("lowy2024faster", "Lowy, Liu & Asi (2024)")
BASSILY_SUN_2023 = Source("bassily2023user", "Bassily & Sun (2023)")
CHOQUETTE_CHOO_2025 = Source("choquettechoo2025near", "Choquette-Choo, Ganesh & Thakurta (2025)")
ABADI_2016 = Source("abadi2016deep", "Abadi et al. (2016)")
ASI_LIU_2024 = Source("asi2024user", "Asi & Liu (2024)")
CHOQUETTE_CHOO_2023 = Source("choquettechoo2023multi", "Choquette-Choo, McMahan, Rush & Thakurta (2023)")
DWORK_2014 = Source("dwork2014analyze", "Dwork, Talwar, Thakurta & Zhang (2014)")
FELDMAN_2020 = Source("feldman2020private", "Feldman, Koren & Talwar (2020)")
KAIROUZ_2021 = Source("kairouz2021practical", "Kairouz et al. (2021)")
LEVY_2021 = Source("levy2021learning", "Levy et al. (2021)")
MCMAHAN_2018 = Source("mcmahan2018learning", "McMahan, Ramage, Talwar & Zhang (2018)")
POLYAK_1992 = Source("polyak1992acceleration", "Polyak & Juditsky (1992)")
WANG_2018 = Source("wang2018revisiting", "Wang (2018)")
WANG_2019 = Source("wang2019subsampled", "Wang, Balle & Kasiviswanathan (2019)")
ZHANG_ONLINE_2022 = Source("zhang2022online", "Zhang, Tran & Cutkosky (2022)")
