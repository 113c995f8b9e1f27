"""What a search tried, chose and cost, as a part of its report: public numbers, and the score that was released."""

from collections.abc import Mapping
from typing import Any

from quoron.reports.page import Fact, Raw, facts, paragraph, section, table
from quoron.reports.pictures import Reach, gauge
from quoron.run_folder import CHOICE, RunFolder

SECRET = (
    "Each trial took one of these settings at random. How the others did, how often each was tried and how many trials "
    "there were is known to nobody: that is why trying them all costs little more than one."
)


def part(folder: RunFolder) -> Raw:
    """Of the folder of a complete search."""
    choice, search = folder.read_json(CHOICE), folder.read_json("plan.json")["search"]
    price, noise = choice["price"], choice["score_noise"]
    reach: Reach = (choice["score"] - 2 * noise, choice["score"] + 2 * noise)
    best = Raw(gauge(choice["score"], reach, (min(0.0, reach[0] or 0.0), max(1.0, reach[1] or 1.0))))
    rows: list[list[str | Raw]] = [
        [each["name"], "chosen" if each["name"] == choice["name"] else ""] for each in search["candidates"]
    ]
    rows += [[each["name"], f"left out: {each['why']}"] for each in search["refused"]]
    lines = [
        Fact("chosen", choice["name"]),
        Fact(f"its {choice['score_name']}", _score(choice)),
        Fact("the same, from 0 to 1, with two deviations of its noise", best),
        Fact("people who scored every trial", f"{search['held_out']:,} of {search['users']:,}, who trained none"),
        Fact("the whole search", f"ε = {price['epsilon']:.4g} at δ = {price['delta']:g}; trials: {price['trials']}"),
        Fact("one trial alone", f"ε = {price['trial_epsilon']:.4g} at the same δ"),
        Fact("all settings one after the other, each shown", f"ε = {price['open_search_epsilon']:.4g}"),
    ]
    return section("What was searched", paragraph(SECRET), facts(lines), table("Settings", ["setting", ""], rows))


def _score(choice: Mapping[str, Any]) -> str:
    return f"{choice['score']:.4g} ± {choice['score_noise']:.2g}: of the best of several, so rather too high"
