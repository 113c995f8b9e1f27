# In the order in which people come for them, as in the reference: functions, what they take, what they return.
# ruff: noqa: I001
from .api.training import train as train
from .releases.measure import evaluate as evaluate
from .training.tuning import tune as tune
from .model import load as load
from .model import Model as Model
from .releases.mean import mean as mean
from .releases.bounds import find_bounds as find_bounds
from .releases.statistics import statistics as statistics
from .training.rows import train_rows as train_rows
from .api.simulating import simulate as simulate
from .api.simulating import compare as compare
from .api.simulating import plan as plan
from .api.simulating import resume as resume
from .api.simulating import algorithms as algorithms
from .paths import read_table as read_table
from .data.columns import Columns as Columns
from .config import Config as Config
from .results import Run as Run
from .results import Release as Release
from .planning.plans import Plan as Plan
from .simulation.comparison import Comparison as Comparison
from quoron_privacy.errors import QuoronError as QuoronError

__version__: str
