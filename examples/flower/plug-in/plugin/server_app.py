"""The ServerApp: train privately, and look at the model."""

import json
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from plugin import task
from quoron.flower import train_privately

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One private training run, by the run config."""
    config = context.run_config
    seed = int(config["simulation-seed"])
    trained = train_privately(
        grid,
        users=int(config["users"]),
        dimension=task.DIMENSION,
        epsilon=float(config["epsilon"]),
        delta=float(config["delta"]),
        clip_norm=float(config["clip-norm"]),
        radius=float(config["radius"]),
        seconds=float(config["seconds"]),
        algorithm=str(config["algorithm"]),
        options={"rounds": config["rounds"], **json.loads(str(config["options"]))},
        start=task.first_model(),
        folder=Path(str(config["folder"])),
        identities=str(config["identities"]),
        simulation_seed=None if seed == -1 else seed,
    )
    print(trained.guarantee.sentence())
    points, labels = task.items(seed=0, count=5000)  # made up as well, by nobody
    before, after = (task.accuracy(model, points, labels) for model in (task.first_model(), trained.model))
    print(f"accuracy {before:.3f} before, {after:.3f} after")
