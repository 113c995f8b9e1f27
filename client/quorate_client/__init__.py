"""What runs where the data is: losses and their constants, gradients, second moments, local SGD, private reports."""

from quorate_client.domains import Box, Domain, L2Ball
from quorate_client.draws import user_keys
from quorate_client.enforcement import bounded
from quorate_client.gradients import average_gradient, average_loss
from quorate_client.items import ItemBatch
from quorate_client.local_sgd import local_sgd
from quorate_client.losses import LOSSES, Loss, make_loss
from quorate_client.moments import second_moment_factor
from quorate_client.questions import (
    Answers,
    AverageGradient,
    LocalSGD,
    Question,
    RangeReport,
    SecondMoment,
    Status,
    Task,
    VectorReport,
)
from quorate_client.randomisers import local_report
from quorate_client.smoothing import Convolution, Moreau, Smoothing
from quorate_client.smoothness import smoothness_scale
from quorate_client.work import answer

__all__ = [
    "LOSSES",
    "Answers",
    "AverageGradient",
    "Box",
    "Convolution",
    "Domain",
    "ItemBatch",
    "L2Ball",
    "LocalSGD",
    "Loss",
    "Moreau",
    "Question",
    "RangeReport",
    "SecondMoment",
    "Smoothing",
    "Status",
    "Task",
    "VectorReport",
    "answer",
    "average_gradient",
    "average_loss",
    "bounded",
    "local_report",
    "local_sgd",
    "make_loss",
    "second_moment_factor",
    "smoothness_scale",
    "user_keys",
]
