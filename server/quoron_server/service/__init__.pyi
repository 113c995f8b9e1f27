from .coordinator import Coordinator as Coordinator
from .coordinator import ServeConfig as ServeConfig
from .program import serve as serve
from .security import Transport as Transport
