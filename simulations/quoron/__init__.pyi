from .api import (
    TableColumns as TableColumns,
)
from .api import (
    ask as ask,
)
from .api import (
    compare as compare,
)
from .api import (
    load as load,
)
from .api import (
    plan as plan,
)
from .api import (
    plan_training as plan_training,
)
from .api import (
    report as report,
)
from .api import (
    resume as resume,
)
from .api import (
    simulate as simulate,
)
from .api import (
    train as train,
)
from .comparing.comparison import Comparison as Comparison
from .config import Config as Config
from .errors import QuoronError as QuoronError
from .mean import PrivateMean as PrivateMean
from .mean import private_mean as private_mean
from .planning.plans import (
    Candidate as Candidate,
)
from .planning.plans import (
    Planned as Planned,
)
from .planning.plans import (
    RoundsCurve as RoundsCurve,
)
from .planning.questions import Advice as Advice
from .planning.questions import Enough as Enough
from .planning.questions import EpsilonPoint as EpsilonPoint
from .reports.summary import Summary as Summary
from .sections import Keep as Keep
from .sections import Method as Method
from .sections import Privacy as Privacy
from .simulation.engines import EngineChoice as EngineChoice
from .simulation.run import RunResult as RunResult
from .training.model import Model as Model
from .training.rows import train_rows as train_rows
from .training.trained import Trained as Trained

__version__: str
