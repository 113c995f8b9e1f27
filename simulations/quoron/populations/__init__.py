"""Populations: many users on one machine, synthetic or from a table, with the truth to compare with."""

from quoron.populations._base import Corruption, Population, PublicKnowledge
from quoron.populations._outliers import OutlierKind, Outliers
from quoron.populations.flights import flights
from quoron.populations.synthetic import FamilyName, Synthetic
from quoron.populations.table import TablePopulation, from_table
from quoron_client.columns import Categorical, Feature, Numeric

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
