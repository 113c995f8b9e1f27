from .config import ClientConfig as ClientConfig
from .record import Agreement as Agreement
from .record import Record as Record
from .session import run_client as run_client
from .terms import Terms as Terms
from .terms import read_terms as read_terms
