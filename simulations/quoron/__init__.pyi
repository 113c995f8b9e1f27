# In the order in which people come for them, as in the reference: functions, what they are told, what they return.
# ruff: noqa: I001
from .api.training import train as train
from .measure import evaluate as evaluate
from .api.tuning import tune as tune
from .model import load as load
from .model import Model as Model
from .private_mean import mean as mean
from .counting.statistics import statistics as statistics
from .training.rows import train_rows as train_rows
from .tuning.select import select as select
from .api.simulating import simulate as simulate
from .api.comparing import compare as compare
from .api.simulating import plan as plan
from .api.training import plan_training as plan_training
from .api.tuning import plan_tuning as plan_tuning
from .api.asking import ask as ask
from .api.resuming import resume as resume
from .api.resuming import report as report
from .tables import opened as opened
from .config import Config as Config
from .training.trained import Trained as Trained
from .private_mean import PrivateMean as PrivateMean
from .simulation.run import RunResult as RunResult
from .reports.summary import Summary as Summary
from .comparing.comparison import Comparison as Comparison
from .tuning.select import Selected as Selected
from .tuning.select import Trial as Trial
from .counting.told import Statistics as Statistics
from .planning.plans import Planned as Planned
from .planning.plans import Candidate as Candidate
from .planning.plans import RoundsCurve as RoundsCurve
from .planning.questions import Advice as Advice
from .planning.questions import Enough as Enough
from .planning.questions import EpsilonPoint as EpsilonPoint
from .errors import QuoronError as QuoronError

__version__: str
