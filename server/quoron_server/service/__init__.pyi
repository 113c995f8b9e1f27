from .config import ServeConfig as ServeConfig
from .coordinator import Coordinator as Coordinator
from .program import serve as serve
from .security import Transport as Transport
