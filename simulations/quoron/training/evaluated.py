"""Users of a data holder's run that are held out: planned with it, drawn when it begins, measured when it ends.

    planned = with_held_out(planned, config, encoding, users)
    trained, held_out = split.parts(users, held_users(users, config.train.holdout), run.noise(own))
    model = run.carry_out(own, engine, observers, evaluations=of_model(prepared, held_out))
    evaluation(promise, loss, encoding, model, own.released(EVALUATED))

Statement and proof: docs/privacy/evaluation.md. The mechanism: quoron_privacy.histograms.held_out.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from quoron.config import Config
from quoron.data.index import Rows
from quoron.data.users import Declared, Users, Vector
from quoron.evaluation import figures
from quoron.evaluation.evaluation import Evaluation
from quoron.evaluation.scores import Scorer, held_users
from quoron.planning.plans import Plan, Prepared
from quoron.training.table import TableSetup, users_of
from quoron_client.data.encoding import Encoding, outcomes
from quoron_client.data.items import ItemBatch
from quoron_client.losses import Loss
from quoron_privacy.histograms.held_out import HeldOut
from quoron_privacy.noise.streams import NoiseSource, SecureNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Guarantee
from quoron_server.rounds import Evaluations
from quoron_server.wording import ReleaseGuarantee, sentence

AT_ONCE = 1 << 14  # users whose vectors are in memory


def with_held_out(planned: Plan, config: Config, encoding: Encoding, users: int) -> Plan:
    """The plan of a run that holds out some of so many users, or slots; Infeasible where they are too few to tell."""
    plan, privacy = planned.plan, planned.plan.guarantee
    held_out = measured_by(privacy, config, users, classes=len(outcomes(encoding.label)))
    if held_out is None:
        return planned
    whole = replace(plan, guarantee=replace(privacy, held_out=held_out))
    ALGORITHMS[whole.algorithm].verify(whole)
    remark = (
        f"{held_out.users:,} of {users:,} users are held out, in secret, and tell how good the model is for the same "
        f"epsilon, as nobody is in both parts: {figures.expected_intervals(held_out)}, 95 %."
    )
    return replace(planned, plan=whole, remarks=(*planned.remarks, remark))


def measured_by(
    privacy: Guarantee, config: Config, users: int, *, classes: int, estimates: bool = False
) -> HeldOut | None:
    """Return what held-out users tell of a label of so many classes; None without any.

    Infeasible where they are too few to tell; `estimates`: so many classes are the most that the label may have.
    """
    if config.train.holdout is None or privacy.trust_model == "none":  # which is refused for what it is
        return None
    held_out = HeldOut.calibrate(
        users=held_users(users, config.train.holdout),
        classes=classes,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        adjacency=privacy.adjacency,
    )
    figures.require_informative(held_out, privacy.epsilon, estimates=estimates)
    return held_out


def of_model(prepared: Prepared[TableSetup], held_out: Users, noise: NoiseSource | None = None) -> Evaluations | None:
    """Return the evaluation of the final model on held-out users; None where there are none.

    The noise is of this start alone, unless given: nobody has seen what is drawn and not committed with the model.
    """
    mechanism = prepared.planned.plan.guarantee.held_out
    if not isinstance(mechanism, HeldOut):
        return None
    rows = prepared.setup.rows

    def release(weights: Vector, _: int) -> tuple[Any, dict[str, Any]]:
        scorer = Scorer(weights, rows.declared.loss, rows.encoding)
        source = SecureNoise.fresh() if noise is None else noise
        released = figures.release(mechanism, scorer, lambda: batches(rows.declared, rows.items, held_out), source)
        return tuple(entry for entry, _ in mechanism.releases()), {"evaluation": released}

    return Evaluations(release)


def batches(declared: Declared, items: ItemBatch | Rows, users: Users) -> Iterator[ItemBatch]:
    """Yield the items of some users (k,), of some at a time."""
    people = users_of(declared, items, users)
    for first in range(0, len(users), AT_ONCE):
        yield people.items(users[first : first + AT_ONCE])


def evaluation(
    promise: Guarantee, loss: Loss, encoding: Encoding, weights: Vector, event: dict[str, Any] | None
) -> Evaluation | None:
    """Return what was released of held-out users, read with its promise; None where there were none."""
    if not isinstance(promise.held_out, HeldOut) or event is None:
        return None
    guarantee = ReleaseGuarantee(promise.epsilon, promise.delta, sentence(promise))
    return figures.read(promise.held_out, Scorer(weights, loss, encoding), event["evaluation"], guarantee)
