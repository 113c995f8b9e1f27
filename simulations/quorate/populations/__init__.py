"""Populations: many users on one machine, synthetic or from a table, with the truth to compare with."""

from quorate.populations._base import Corruption, Population, PublicKnowledge
from quorate.populations._outliers import OutlierKind, Outliers
from quorate.populations.flights import flights
from quorate.populations.synthetic import FamilyName, Synthetic
from quorate.populations.table import TablePopulation, from_table
from quorate_client.columns import Categorical, Feature, Numeric

__all__ = [
    "Categorical",
    "Corruption",
    "FamilyName",
    "Feature",
    "Numeric",
    "OutlierKind",
    "Outliers",
    "Population",
    "PublicKnowledge",
    "Synthetic",
    "TablePopulation",
    "flights",
    "from_table",
]
