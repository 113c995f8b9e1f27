"""What runs where the data is: losses and their constants, average gradients, local SGD."""

from quorate_client.domains import Box, Domain, L2Ball
from quorate_client.enforcement import bounded
from quorate_client.gradients import average_gradient, average_loss
from quorate_client.items import ItemBatch
from quorate_client.local_sgd import local_sgd
from quorate_client.losses import LOSSES, Loss, make_loss
from quorate_client.questions import Answers, AverageGradient, LocalSGD, Question, Status, Task
from quorate_client.smoothness import smoothness_scale
from quorate_client.work import answer

__all__ = [
    "LOSSES",
    "Answers",
    "AverageGradient",
    "Box",
    "Domain",
    "ItemBatch",
    "L2Ball",
    "LocalSGD",
    "Loss",
    "Question",
    "Status",
    "Task",
    "answer",
    "average_gradient",
    "average_loss",
    "bounded",
    "local_sgd",
    "make_loss",
    "smoothness_scale",
]
