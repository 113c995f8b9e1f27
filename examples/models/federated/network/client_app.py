"""The ClientApp: a user's row of our network, of its own items."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from network import task
from network.promise import local
from quoron.torch import answering
from quoron_client.flower.answering import answer_with

app = ClientApp()


@app.query("private")
def private(message: Message, context: Context) -> Message:
    """What this node's items say about a model of the server's."""
    own = task.items(int(context.node_config["partition-id"]))
    rows = answering(task.network(), own, loss=task.loss, items_per_user=task.ITEMS, local=local(context.run_config))
    return answer_with(message, context, rows)
