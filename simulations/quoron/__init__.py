"""User-level private federated optimisation: many users on one machine, honest promises, honest costs.

    import quoron

    run = quoron.simulate("quickstart", epsilon=2.0)
    print(run.summary)

What is imported here is public; everything else may change.
"""

from quoron.api import plan, report, resume, simulate
from quoron.config import Config
from quoron.planning import Candidate, Planned, RoundsCurve
from quoron.private_mean import PrivateMean, private_mean
from quoron.runs import RunResult
from quoron.summary import Summary
from quoron_protos.errors import QuoronError

__version__ = "0.1.0"

__all__ = [
    "Candidate",
    "Config",
    "Planned",
    "PrivateMean",
    "QuoronError",
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
