from .choice import Engine as Engine
from .choice import Flower as Flower
from .choice import Inline as Inline
from .choice import Ray as Ray
from .choice import Service as Service
