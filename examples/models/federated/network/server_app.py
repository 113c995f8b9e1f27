"""The ServerApp: train privately on a federation."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from network import task
from network.promise import method
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
        epsilon=float(config["epsilon"]),
        delta=float(config["delta"]),
        seed=None if seed == -1 else seed,
        out=str(config["folder"]),
        start=start,
        seconds=float(config["seconds"]),
        identities=str(config["identities"]),
        **method(config),
    )
    print(trained.statement)
    print(f"accuracy on a federation: {task.accuracy(with_weights(task.network(), trained.weights)):.3f}")
