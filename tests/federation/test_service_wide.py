"""A run over 10⁵ columns is carried out, and what is too long to be told is refused by name, on the coordinator too."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from federation.crowd import SEED, Honest, carried_out, complete, coordinator, crowd, inline_model, specification
from quoron.operate.control import Address, Control
from quoron.populations import Synthetic
from quoron.simulation.inline import InlineEngine
from quoron_client.data.encoding import Encoding, Numeric, Signs
from quoron_client.protocol.domains import L2Ball
from quoron_privacy.errors import ConfigError
from quoron_server.service import tokens
from quoron_server.specification import LONGEST, RunSpecification

NAME, WIDE = "one-pass-dp-sgd", 100_000


def wide() -> RunSpecification:
    """A small run, but for its columns."""
    small = specification(NAME)
    columns = Encoding((Numeric(f"x[0:{WIDE}]", -1.0, 1.0),), Signs("sick"), intercept=False)
    return small.model_copy(update={"columns": columns, "problem": replace(small.problem, dimension=WIDE)})


def test_ten_to_the_five_columns_give_the_bits_of_the_inline_engine(tmp_path: Path) -> None:
    wanted = wide()
    users = wanted.problem.users
    people = Synthetic("logistic", users=users, items_per_user=4, dimension=WIDE, domain=L2Ball(2.0), seed=SEED)

    async def scene() -> np.ndarray:
        async with coordinator(tmp_path) as running, crowd(running.listen, users) as peers:
            honest = Honest(InlineEngine(people, seed=SEED))
            working = [asyncio.create_task(peer.work(honest)) for peer in peers]
            await running.manager.submit(wanted.as_text())
            model = await complete(running)
            await asyncio.gather(*working)
            return model

    np.testing.assert_array_equal(carried_out(scene()), inline_model(wanted, tmp_path, people))


@pytest.mark.parametrize("letters", [LONGEST + 1, LONGEST // 2 + 1, 4 * LONGEST])
def test_what_is_too_long_is_refused_by_name_and_never_by_the_transport(letters: int, tmp_path: Path) -> None:
    """As bytes that the coordinator reads, as two bytes a letter, and as a message longer than it takes."""
    operator = tokens.add(tmp_path / "tokens.json", name="operator", role="operator")
    text = ("é" if letters < LONGEST else "x") * letters

    async def scene() -> None:
        async with coordinator(tmp_path) as running:
            control = Control(Address(running.control, operator, insecure=True))
            with control, pytest.raises(ConfigError, match=r"Expected a (specification|message)"):
                await asyncio.to_thread(control.submit, text)

    carried_out(scene())
