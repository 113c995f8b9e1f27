from .client_state import Agreement as Agreement
from .client_state import ClientState as ClientState
from .config import ClientConfig as ClientConfig
from .session import run_client as run_client
from .terms import Terms as Terms
