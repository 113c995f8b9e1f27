"""User-level private federated optimisation: many users on one machine, honest promises, honest costs.

    import quorate

    run = quorate.simulate("quickstart", epsilon=2.0)
    print(run.summary)

What is imported here is public; everything else may change.
"""

from quorate.api import plan, report, resume, simulate
from quorate.config import Config
from quorate.planning import Candidate, Planned, RoundsCurve
from quorate.private_mean import PrivateMean, private_mean
from quorate.runs import RunResult
from quorate.summary import Summary
from quorate_protos.errors import QuorateError

__version__ = "0.1.0"

__all__ = [
    "Candidate",
    "Config",
    "Planned",
    "PrivateMean",
    "QuorateError",
    "RoundsCurve",
    "RunResult",
    "Summary",
    "__version__",
    "plan",
    "private_mean",
    "report",
    "resume",
    "simulate",
]
