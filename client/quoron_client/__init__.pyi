from .compute.draws import user_keys as user_keys
from .compute.enforcement import bounded as bounded
from .compute.gradients import average_gradient as average_gradient
from .compute.gradients import average_loss as average_loss
from .compute.local_iterates import local_sgd as local_sgd
from .compute.moments import second_moment_factor as second_moment_factor
from .compute.smoothness import smoothness_scale as smoothness_scale
from .compute.work import answer as answer
from .data.items import ItemBatch as ItemBatch
from .losses import (
    LOSSES as LOSSES,
)
from .losses import (
    Loss as Loss,
)
from .losses import (
    make_loss as make_loss,
)
from .protocol.domains import (
    Box as Box,
)
from .protocol.domains import (
    Domain as Domain,
)
from .protocol.domains import (
    L2Ball as L2Ball,
)
from .protocol.questions import (
    Answers as Answers,
)
from .protocol.questions import (
    AverageGradient as AverageGradient,
)
from .protocol.questions import (
    AverageLoss as AverageLoss,
)
from .protocol.questions import (
    LocalSGD as LocalSGD,
)
from .protocol.questions import (
    MomentAndGradient as MomentAndGradient,
)
from .protocol.questions import (
    Question as Question,
)
from .protocol.questions import (
    SecondMoment as SecondMoment,
)
from .protocol.questions import (
    Status as Status,
)
from .protocol.questions import (
    Task as Task,
)
from .protocol.reports import RangeReport as RangeReport
from .protocol.reports import VectorReport as VectorReport
from .protocol.smoothing import (
    Convolution as Convolution,
)
from .protocol.smoothing import (
    Moreau as Moreau,
)
from .protocol.smoothing import (
    Smoothing as Smoothing,
)
from .randomisers import local_report as local_report
