"""What runs where the data is: losses and their constants, gradients, second moments, local SGD, private reports."""

from quoron_client.domains import Box, Domain, L2Ball
from quoron_client.draws import user_keys
from quoron_client.enforcement import bounded
from quoron_client.gradients import average_gradient, average_loss
from quoron_client.items import ItemBatch
from quoron_client.local_sgd import local_sgd
from quoron_client.losses import LOSSES, Loss, make_loss
from quoron_client.moments import second_moment_factor
from quoron_client.questions import (
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
from quoron_client.randomisers import local_report
from quoron_client.smoothing import Convolution, Moreau, Smoothing
from quoron_client.smoothness import smoothness_scale
from quoron_client.work import answer

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
