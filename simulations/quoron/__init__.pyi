# In the order in which people come for them, as in the reference: functions, what they are told, what they return.
# ruff: noqa: I001
from .doors.training import train as train
from .measure import evaluate as evaluate
from .doors.tuning import tune as tune
from .model import load as load
from .model import Model as Model
from .private_mean import mean as mean
from .counting.door import statistics as statistics
from .training.rows import train_rows as train_rows
from .tuning.select import select as select
from .doors.simulating import simulate as simulate
from .doors.comparing import compare as compare
from .doors.simulating import plan as plan
from .doors.training import plan_training as plan_training
from .doors.tuning import plan_tuning as plan_tuning
from .doors.asking import ask as ask
from .doors.resuming import resume as resume
from .doors.resuming import report as report
from .tables import opened as opened
from .sections import Privacy as Privacy
from .sections import Method as Method
from .sections import Keep as Keep
from .table_columns import TableColumns as TableColumns
from .engines import EngineChoice as EngineChoice
from .training.rows import HoldOut as HoldOut
from .config import Config as Config
from .training.trained import Trained as Trained
from .private_mean import PrivateMean as PrivateMean
from .simulation.run import RunResult as RunResult
from .reports.summary import Summary as Summary
from .comparing.comparison import Comparison as Comparison
from .tuning.effort import Effort as Effort
from .tuning.select import Selected as Selected
from .tuning.select import Trial as Trial
from .counting.questions import Question as Question
from .counting.told import Statistics as Statistics
from .planning.plans import Planned as Planned
from .planning.plans import Candidate as Candidate
from .planning.plans import RoundsCurve as RoundsCurve
from .planning.questions import Advice as Advice
from .planning.questions import Enough as Enough
from .planning.questions import EpsilonPoint as EpsilonPoint
from .errors import QuoronError as QuoronError

__version__: str
