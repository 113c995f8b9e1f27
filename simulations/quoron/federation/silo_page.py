"""The page of a silo's account: what was promised to its persons, run by run, for whoever checks on it.

One file that loads nothing. No line on any one person is in it.
"""

from quoron.reports import page
from quoron.reports.page import Card, Fact, Raw, Section, Table
from quoron_client.federation.account import Account, Promise

FOOTER = (
    "Made by quoron from the silo's own record. For the silo and anyone who checks on it, and nobody else: how many "
    "have answered may tell whom a secret cohort had."
)
PROMISED = (
    "Each run protects all rows of any one person of this silo at once, by the statement below it: anyone who sees "
    "what the run released can hardly tell whether that person's rows were others. What several runs show adds up, to "
    "at most the sums of ε and of δ. A person who is known to another silo too is two persons: the sums of both hold "
    "for it."
)
LEFT = (
    "Anyone who has left is in no answer any more, in runs that go on too. What was released before stays: it is "
    "covered by its guarantee."
)


def document(account: Account) -> str:
    """The page as HTML text."""
    most = account.spending[0]
    charged = [each for each in account.runs if each.persons_charged]
    spent = [(f"{each.epsilon:g}", f"{each.delta:g}", f"{each.persons:,}") for each in account.spending]
    parts = [
        Section(
            cards=[
                Card("persons", f"{account.persons:,}", f"of them {len(account.departures):,} have left"),
                Card("most spent of a person", f"ε = {most.epsilon:g}", f"δ = {most.delta:g}, over all runs"),
                Card("runs", f"{len(charged):,}", f"that somebody is charged for, of {len(account.runs):,} agreed to"),
            ]
        ),
        Section(title="What is guaranteed", note=[PROMISED]),
        Section(title="What has been spent", tables=[Table("By what they were charged", ["ε", "δ", "persons"], spent)]),
        Section(title="Run by run", picture="".join(map(_run, account.runs))),
        Section(
            title="Who has left",
            note=[*([] if account.departures else ["Nobody has left."]), LEFT],
            warnings=[f"a person, on {time[:10]}" for time in account.departures],
        ),
    ]
    lead = f"The account of {account.record}, {account.made[:10]}."
    return page.document("What was guaranteed", lead=lead, parts=parts, simulated=False, footer=FOOTER)


def _run(said: Promise) -> Raw:
    announced = "" if said.epsilon is None or said.delta is None else f"ε = {said.epsilon:g}, δ = {said.delta:g}"
    facts = [
        Fact("agreed to", said.agreed[:10] or "not told"),
        Fact("method", said.algorithm or "not told"),
        Fact("adjacency, trust model", ", ".join(filter(None, (said.adjacency, said.trust_model))) or "not told"),
        Fact("announced", announced or "not told"),
        Fact("charged to a person", f"ε = {said.charged_epsilon:g}, δ = {said.charged_delta:g}"),
        Fact("theorem", said.theorem or "not told"),
        Fact("persons", f"{said.persons_charged:,} charged, {said.persons_answered:,} answered, of {said.persons:,}"),
        Fact(
            "answers",
            f"{said.rounds_answered:,} rounds, {said.state}; participation {said.participation or 'not told'}",
        ),
    ]
    return page.folded(said.run, page.formal(said.statement) + page.facts(facts))
