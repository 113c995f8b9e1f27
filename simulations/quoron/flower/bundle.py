"""A Flower app as a folder with a pyproject.toml: what `flwr run` is given.

The components are those of the installed package; the folder carries the run config only.
"""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from quoron import toml_text
from quoron.run_folder import write
from quoron_client.durable import make_folder


def write_bundle(
    folder: Path, *, name: str, server: str, client: str, settings: Mapping[str, str | int | float | bool]
) -> Path:
    """Write the app's pyproject.toml; components are `module:attribute`. Returns the folder."""
    tree = {
        "project": {
            "name": name,
            "version": version("quoron"),
            "description": "User-level private federated optimisation",
            "license": "Apache-2.0",
            "dependencies": [f"quoron=={version('quoron')}"],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "quoron",
                    "components": {"serverapp": server, "clientapp": client},
                    "config": dict(settings),
                }
            }
        },
    }
    make_folder(folder)
    write(folder / "pyproject.toml", toml_text.dumps(tree).encode(), advice="Choose another folder.")
    return folder
