"""How quoron's wheel is built: by setuptools, with all loops compiled (`quoron.kernels`): nobody's first run waits.

QUORON_KERNELS=0 leaves them out, and so does an environment without numba. The wheel is then smaller by some 4 MB and
goes everywhere as well: what is compiled fits one numba, one Python and most processors, and is passed over elsewhere.
"""

import importlib.util
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 - the other hooks

ROOT = Path(__file__).parent.parent
FOLDERS = ("protos", "privacy", "client", "server", "simulations")


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """What compiling needs, too: all that runs on one machine."""
    found: list[str] = build_meta.get_requires_for_build_wheel(config_settings)
    if _wanted():
        found += tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    return found


def build_wheel(directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """The wheel, with what could be compiled."""
    if _wanted() and importlib.util.find_spec("numba") is not None:
        path = os.pathsep.join([*(str(ROOT / each) for each in FOLDERS), os.environ.get("PYTHONPATH", "")])
        print("Compiling all loops, which takes two processor minutes (QUORON_KERNELS=0 leaves it to first runs) ...")
        command = [sys.executable, "-m", "quoron.kernels", "--ship"]
        if subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, check=False).returncode:
            print("Not compiled: a first run will do it.")
    name: str = build_meta.build_wheel(directory, config_settings, metadata_directory)
    return name


def _wanted() -> bool:
    return os.environ.get("QUORON_KERNELS") != "0"
