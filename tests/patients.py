"""Made-up patients with an age and a dose, who are ill the sooner the larger both are: the same whenever asked for."""

from typing import Any

import numpy as np
import pandas as pd

COLUMNS: dict[str, Any] = {"user": "who", "label": "ill", "columns": {"numeric": {"age": (0, 100), "dose": (0, 5)}}}


def patients(users: int, *, spread: float = 0.0, above: float = 75.0, rows: int = 2, seed: int = 3) -> pd.DataFrame:
    """So many rows a user: `who`, `age` in [0, 100], `dose` in [0, 5], and `ill`, where noise of `spread` is in it."""
    draw = np.random.Generator(np.random.Philox(seed))
    who = np.repeat(np.arange(users), rows)
    age, dose = draw.uniform(0, 100, len(who)), draw.uniform(0, 5, len(who))
    ill = age + 10 * dose + (draw.normal(0, spread, len(who)) if spread else 0.0) > above
    return pd.DataFrame({"who": who, "age": age, "dose": dose, "ill": ill})
