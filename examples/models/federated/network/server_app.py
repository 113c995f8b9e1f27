"""The ServerApp: train privately on a federation."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from network import task
from network.promise import promise
from quoron.flower import train_privately
from quoron.torch import weights, with_weights

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One private training run, by the run config."""
    config, start = context.run_config, weights(task.network())
    seed = int(config["simulation-seed"])
    trained = train_privately(
        grid,
        users=int(config["users"]),
        dimension=len(start),
        start=start,
        seconds=float(config["seconds"]),
        folder=Path(str(config["folder"])),
        identities=str(config["identities"]),
        simulation_seed=None if seed == -1 else seed,
        **promise(config),
    )
    print(trained.guarantee.sentence())
    print(f"accuracy on a federation: {task.accuracy(with_weights(task.network(), trained.model)):.3f}")
