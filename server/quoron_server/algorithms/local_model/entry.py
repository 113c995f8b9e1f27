"""`local-model` in the registry."""

from quoron_server.algorithms.forecast import Factor
from quoron_server.algorithms.info import AlgorithmInfo, NoBlackBoxes, Promises
from quoron_server.algorithms.local_model import plan as planning
from quoron_server.algorithms.local_model.method import LocalModel
from quoron_server.algorithms.local_model.parameters import LocalModelParameters
from quoron_server.algorithms.references import BASSILY_SUN_2023, repaired

INFO = AlgorithmInfo(
    name=planning.NAME,
    summary="One report a user, private before it leaves the client: protects against the coordinator too",
    origin=repaired(
        BASSILY_SUN_2023.at("Algorithms 2, 3 and 5"), note="steps start from another point and are projected"
    ),
    promises=Promises(
        ("local",), ("replace-one",), planning.THEOREM, one_server="it needs neither server: clients add the noise"
    ),
    options=planning.LocalModelOptions,
    parameters=LocalModelParameters,
    planner=planning.plan,
    verifier=planning.verify,
    maker=LocalModel,
    factor=Factor(known=None, unknown=2.0),
    no_black_boxes=NoBlackBoxes("its clients add noise of their own, which only clients of ours are known to do"),
)
