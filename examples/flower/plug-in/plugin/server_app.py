"""The ServerApp: train privately, and look at the model."""

import json

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
        seed=None if seed == -1 else seed,
        algorithm=str(config["algorithm"]),
        options={"rounds": config["rounds"], **json.loads(str(config["options"]))},
        radius=float(config["radius"]),
        clip_norm=float(config["clip-norm"]),
        out=str(config["folder"]),
        seconds=float(config["seconds"]),
        start=task.first_model(),
        identities=str(config["identities"]),
    )
    print(trained.statement)
    points, labels = task.items(seed=0, count=5000)  # made up as well, by nobody
    before, after = (task.accuracy(model, points, labels) for model in (task.first_model(), trained.model))
    print(f"accuracy {before:.3f} before, {after:.3f} after")
