"""The page of a silo's ledger: what was promised to its persons, run by run, for an auditor.

One file that loads nothing. No line on any one person is in it.
"""

from quoron.reports import page
from quoron.reports.page import Section, Table
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
    """Return the page as HTML text."""
    most = account.spending[0]
    charged = [each for each in account.runs if each.persons_charged]
    spent = [(f"{each.epsilon:g}", f"{each.delta:g}", f"{each.persons:,}") for each in account.spending]
    rows = [
        ("persons", f"{account.persons:,}, of them {len(account.departures):,} have left"),
        ("most spent of a person", f"ε = {most.epsilon:g}, δ = {most.delta:g}, over all runs"),
        ("runs", f"{len(charged):,} that somebody is charged for, of {len(account.runs):,} agreed to"),
    ]
    parts = [
        Section(title="What is guaranteed", note=[PROMISED]),
        Section(
            title="What has been spent",
            rows=rows,
            tables=[Table("By what they were charged", ["ε", "δ", "persons"], spent)],
        ),
        *map(_run, account.runs),
        Section(
            title="Who has left",
            note=[*([] if account.departures else ["Nobody has left."]), LEFT],
            warnings=[f"a person, on {time[:10]}" for time in account.departures],
        ),
    ]
    lead = f"The account of {account.record}, {account.made[:10]}."
    return page.document("What was guaranteed", parts, lead=lead, footer=FOOTER)


def _run(run: Promise) -> Section:
    announced = "" if run.epsilon is None or run.delta is None else f"ε = {run.epsilon:g}, δ = {run.delta:g}"
    participation = run.participation or "not told"
    rows = [
        ("agreed to", run.agreed[:10]),
        ("method", run.algorithm),
        ("adjacency, trust model", ", ".join(filter(None, (run.adjacency, run.trust_model)))),
        ("announced", announced),
        ("charged to a person", f"ε = {run.charged_epsilon:g}, δ = {run.charged_delta:g}"),
        ("theorem", run.theorem),
        ("persons", f"{run.persons_charged:,} charged, {run.persons_answered:,} answered, of {run.persons:,}"),
        ("answers", f"{run.rounds_answered:,} rounds, {run.state}; participation {participation}"),
    ]
    told = [(label, text or "not told") for label, text in rows]
    return Section(title=f"Run {run.run}", rows=told, statement=run.statement)
