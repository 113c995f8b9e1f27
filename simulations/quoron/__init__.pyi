from .api import (
    plan as plan,
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
from .config import Config as Config
from .errors import QuoronError as QuoronError
from .mean import PrivateMean as PrivateMean
from .mean import private_mean as private_mean
from .planning import (
    Candidate as Candidate,
)
from .planning import (
    Planned as Planned,
)
from .planning import (
    RoundsCurve as RoundsCurve,
)
from .runs import RunResult as RunResult
from .summary import Summary as Summary

__version__: str
