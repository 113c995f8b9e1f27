"""The ClientApp: what it does anyway, and one action more."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from plugin import task
from quoron_client.flower.answering import answer_with

app = ClientApp()


@app.query("private")
def private(message: Message, context: Context) -> Message:
    """What this node's own items say about a model of the server's: an average gradient, or a local update."""

    def gradient(model: task.Array) -> task.Array:
        points, labels = task.items(seed=1 + int(context.node_config["partition-id"]))
        steps = int(context.run_config["local-steps"])
        if steps:
            return task.local_update(model, points, labels, steps)
        return task.average_gradient(model, points, labels)

    return answer_with(message, context, gradient)
