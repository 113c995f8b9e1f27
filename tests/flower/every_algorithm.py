"""The ServerApp of a test: one run of Flower's carries out many of ours, one after the other, over the same nodes.

Users of a synthetic population are drawn by their own number, so that ClientApps which know the largest of the
populations answer for all of them.
"""

import json
import time
from dataclasses import replace
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from quoron import sources
from quoron.flower.simulated import RUN
from quoron.run_folder import RunFolder
from quoron.simulation import run as runs
from quoron_server.flower.engine import FlowerEngine
from quoron_server.flower.shards import Shards
from quoron_server.serial import dumps

server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    wanted = json.loads(Path(str(context.run_config["wanted"])).read_text(encoding="utf-8"))
    out = Path(str(context.run_config["out"]))
    fleet = Shards.found(grid, run=RUN, seconds=600)
    figures = {"nodes": len(fleet.nodes)}
    for name, settings in wanted.items():
        config, _ = sources.resolve("quickstart", settings)
        prepared, folder = runs.prepare(config, out), RunFolder(out / name)
        folder.path.mkdir()
        engine = FlowerEngine(grid, fleet, RUN, prepared.scene.problem, 600.0, early_ends=True, demanding=True)
        began = time.perf_counter()
        runs.carry_out(replace(prepared, scene=replace(prepared.scene, engine=engine)), folder)
        figures[name] = time.perf_counter() - began
    (out / "figures.json").write_text(dumps(figures))
