from .domains import (
    Box as Box,
)
from .domains import (
    Domain as Domain,
)
from .domains import (
    L2Ball as L2Ball,
)
from .draws import user_keys as user_keys
from .enforcement import bounded as bounded
from .gradients import average_gradient as average_gradient
from .gradients import average_loss as average_loss
from .items import ItemBatch as ItemBatch
from .local_iterates import local_sgd as local_sgd
from .losses import (
    LOSSES as LOSSES,
)
from .losses import (
    Loss as Loss,
)
from .losses import (
    make_loss as make_loss,
)
from .moments import second_moment_factor as second_moment_factor
from .questions import (
    Answers as Answers,
)
from .questions import (
    AverageGradient as AverageGradient,
)
from .questions import (
    LocalSGD as LocalSGD,
)
from .questions import (
    Question as Question,
)
from .questions import (
    RangeReport as RangeReport,
)
from .questions import (
    SecondMoment as SecondMoment,
)
from .questions import (
    Status as Status,
)
from .questions import (
    Task as Task,
)
from .questions import (
    VectorReport as VectorReport,
)
from .randomisers import local_report as local_report
from .smoothing import (
    Convolution as Convolution,
)
from .smoothing import (
    Moreau as Moreau,
)
from .smoothing import (
    Smoothing as Smoothing,
)
from .smoothness import smoothness_scale as smoothness_scale
from .work import answer as answer
