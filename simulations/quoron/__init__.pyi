# In the order in which people come for them, as in the reference: functions, what they are told, what they return.
# ruff: noqa: I001
from .api.training import train as train
from .measure import evaluate as evaluate
from .api.tuning import tune as tune
from .model import load as load
from .model import Model as Model
from .private_mean import mean as mean
from .private_bounds import find_bounds as find_bounds
from .counting.statistics import statistics as statistics
from .training.rows import train_rows as train_rows
from .api.simulating import simulate as simulate
from .api.comparing import compare as compare
from .api.simulating import plan as plan
from .api.resuming import resume as resume
from .api.listing import algorithms as algorithms
from .tables import read_table as read_table
from .config import Config as Config
from .training.trained import Trained as Trained
from .private_mean import PrivateMean as PrivateMean
from .simulation.run import RunResult as RunResult
from .comparing.comparison import Comparison as Comparison
from .counting.told import Statistics as Statistics
from .planning.plans import Planned as Planned
from .errors import QuoronError as QuoronError

__version__: str
