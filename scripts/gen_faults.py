"""Write the alarm rules and the runbook's table, both from `FAULTS`; `--check` only says if they are up to date.

A fault has one row here, and a dry run of the same name in tests/federation/faults.py: tests/federation/test_runbook.py
carries each of them out and shows its metrics to the rule.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import written

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "runbook.md"
RULES = ROOT / "server" / "quoron_server" / "service" / "alarms.yml"
BEGIN, END = "<!-- faults: scripts/gen_faults.py -->", "<!-- end of faults -->"
HEAD = """\
# Alarms for Prometheus, over a coordinator or the second of two servers: docs/runbook.md says what to do at each.
# Written by scripts/gen_faults.py.
#
#   scrape_configs:
#     - job_name: quoron                     # names of jobs begin with this word, as the first rule expects
#       scrape_interval: 15s
#       static_configs: [{targets: ["127.0.0.1:9464"]}]
#   rule_files: [alarms.yml]
#
# One fault raises one alarm: what follows from another is left out by `unless`.
groups:
  - name: quoron
    interval: 15s
    rules:
"""
WHERE = "(instance, job)"  # one server


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault of a federation: when it raises its alarm, and what to do."""

    name: str  # of its row in the runbook and of its dry run; the alarm's follows from it
    meaning: str
    remedy: str  # Markdown
    rule: str  # PromQL
    unless: tuple[str, ...] = ()  # faults that have the same effect: while one of them is there, its alarm is enough
    wait: str | None = None  # how long the rule must hold before the alarm
    severity: str = "warning"  # critical: runs or the privacy ledger are at risk; info: perhaps intended

    @property
    def alarm(self) -> str:
        """The alarm's name, such as QuoronDiskFull of disk-full."""
        return "Quoron" + self.name.title().replace("-", "")

    @property
    def metrics(self) -> set[str]:
        """The metrics that the rule reads, without those of `unless`."""
        return set(re.findall(r"\bquoron_\w+", self.rule))

    @property
    def expression(self) -> str:
        """The rule without what follows from another fault, in PromQL."""
        return "\n".join([self.rule, *(f"unless on {WHERE} {BY_NAME[other].rule}" for other in self.unless)])


def refused(metric: str, why: str) -> str:
    """In the last ten minutes something was refused for this reason."""
    return f'sum by {WHERE} (increase(quoron_{metric}_refused_total{{why="{why}"}}[10m])) > 0'


FAULTS = (
    Fault(
        name="down",
        meaning="The coordinator, or the second server, does not answer",
        remedy="Start it again; open runs continue. If it ends at once, its last line says why",
        rule='up{job=~"quoron.*"} == 0',
        wait="30s",
        severity="critical",
    ),
    Fault(
        name="run-stuck",
        meaning="A run does not go on, though the database is there",
        remedy="Restart the coordinator. If the run hangs again, keep the log and cancel it",
        rule="quoron_run_idle_seconds > 1.75 * quoron_run_round_seconds\n"
        f"unless on {WHERE} min_over_time(quoron_database_up[2m]) == 0\n"
        f"unless on {WHERE} min by {WHERE} (min_over_time(quoron_disk_free_bytes[2m])) < 1073741824",
        unless=("database-lost",),
        severity="critical",
    ),
    Fault(
        name="clients-away",
        meaning="Fewer members of an open run are connected than its minimum cohort (half without one), or a run ended "
        "below it",
        remedy="Check their network and logs; they reconnect by themselves. After `below-min-cohort` submit another "
        "run",
        rule=f"""\
(
  (
    (min by {WHERE} (quoron_run_members_connected / quoron_run_members
      < (quoron_run_min_cohort or 0 * quoron_run_members + 0.5)))
    and on {WHERE} (quoron_clock_seconds - quoron_start_time_seconds > 120)
  )
  or (sum by {WHERE} (delta(quoron_runs_ended{{how="below-min-cohort"}}[10m])) > 0)
)
unless on {WHERE} quoron_certificate_days_left < 0""",
        unless=("database-older", "revocations-unreadable"),
        wait="30s",
        severity="critical",
    ),
    Fault(
        name="database-away",
        meaning="The database does not answer, or cannot be written",
        remedy="Restore it, or free its disk; runs wait. Start no second coordinator",
        rule="quoron_database_up == 0",
        unless=("database-lost", "disk-full"),
        wait="30s",
        severity="critical",
    ),
    Fault(
        name="disk-full",
        meaning="The disk of the database, of long answers or of the second server's keys is full",
        remedy="Free space; restart the server if runs do not continue. Never delete `coordinator.sqlite…`",
        rule=f"min by {WHERE} (quoron_disk_free_bytes) < 1073741824",
        unless=("database-lost",),
        severity="critical",
    ),
    Fault(
        name="database-lost",
        meaning="The database's file is gone, or another is in its place",
        remedy="Stop the coordinator. Bring the volume back and start it, else `quoron admin restore` the "
        "[latest backup](durability.md#what-if-i-lose-the-database)",
        rule="quoron_database_in_place == 0",
        severity="critical",
    ),
    Fault(
        name="ledger-changed",
        meaning="Something else changed a row of the privacy ledger",
        remedy="Stop the coordinator. `quoron ledger verify` names the row; compare with your last export, and correct "
        "it or restore a backup",
        rule="quoron_ledger_intact == 0",
        unless=("database-lost",),
        severity="critical",
    ),
    Fault(
        name="database-older",
        meaning="The database is older than a client has seen",
        remedy="Stop the coordinator. Put the newer database back, else `quoron admin restore` this one. A single "
        "client may lie: check others",
        rule="quoron_newer_database_seen_total > 0",
        severity="critical",
    ),
    Fault(
        name="clock-jumped",
        meaning="The clock is wrong by more than a minute",
        remedy="Set it and repair NTP. Only certificates, and the end of the second server's keys, depend on it",
        rule="abs(quoron_clock_seconds - timestamp(quoron_clock_seconds)) > 60",
    ),
    Fault(
        name="certificate-ends",
        meaning="A certificate ends within thirty days: a server's, the authority's or a connected client's",
        remedy="`quoron_certificate_days_left` says whose. [Renew it](federation.md#certificates-that-end) "
        "(`quoron admin certs FOLDER --client NAME --renew`); no restart is needed",
        rule=f"(min by {WHERE} (quoron_certificate_days_left) < 30)\nor ({refused('calls', 'expired')})",
    ),
    Fault(
        name="client-revoked",
        meaning="A client was revoked or forgotten, or a revoked one returns",
        remedy="Nothing, if you revoked or [forgot](leaving.md) it. Otherwise find who writes the list",
        rule=f"(delta(quoron_revoked_clients[10m]) > 0)\nor on {WHERE} ({refused('calls', 'revoked')})",
        severity="info",
    ),
    Fault(
        name="revocations-unreadable",
        meaning="The list of revoked clients cannot be read",
        remedy="Put a whole list in its place (`mv`); until then no client is admitted",
        rule="quoron_revocations_readable == 0",
        severity="critical",
    ),
    Fault(
        name="wrong-key",
        meaning="A call with a foreign or expired token, or a foreign certificate",
        remedy="The log says from where. Give an operator the right token, or the second server the coordinator's "
        "certificate; against strangers restrict the port. Another authority's certificate shows only in that client's "
        "log",
        rule=refused("calls", "identity"),
    ),
    Fault(
        name="foreign-client",
        meaning="A client speaks another protocol, or something changes its messages",
        remedy="The log names it. Give it the coordinator's version, with nothing in between (on Flower "
        "[no mod](flower.md#when-something-dies))",
        rule=refused("calls", "foreign"),
    ),
    Fault(
        name="plan-refused",
        meaning="The coordinator's plan differs from the submitter's",
        remedy="Use the same version of quoron on both sides, and submit again",
        rule=refused("submissions", "plan"),
    ),
    Fault(
        name="limit-reached",
        meaning="A population's limit leaves no room",
        remedy="`quoron ledger show` says [what is left](durability.md#how-much-budget-is-left). Ask for less, or "
        "raise the limit, which the ledger records under your name",
        rule=f"({refused('submissions', 'limit')})\n"
        f"or (count by {WHERE} (quoron_epsilon_left == 0 and quoron_mu_left == 0) > 0)",
    ),
    Fault(
        name="rounds-late",
        meaning="A round opened late: the work of the one before took longer than its pause, which shows how long",
        remedy="Submit runs with longer rounds (`--timeout`), or give the coordinator a faster disk and processor",
        rule=f"increase(quoron_rounds_late_total[10m]) > 0\n"
        f"unless on {WHERE} min_over_time(quoron_database_up[10m]) == 0",
        unless=("run-stuck", "database-lost", "disk-full"),
    ),
    Fault(
        name="run-paused",
        meaning="A run is paused: another version or configuration was started",
        remedy="`quoron runs` says why. Start the version that began it, or cancel it",
        rule='quoron_runs{state="paused"} > 0',
    ),
    Fault(
        name="run-cancelled",
        meaning="A run was cancelled",
        remedy="`quoron ledger show --history` says by whom. Its charge stays",
        rule='delta(quoron_runs_ended{how="cancelled"}[10m]) > 0',
        severity="info",
    ),
    Fault(
        name="run-failed",
        meaning="A run failed",
        remedy="`quoron runs` and the log say why. Its charge stays; fix the cause and submit another",
        rule='delta(quoron_runs_ended{how="failed"}[10m]) > 0',
        unless=("ledger-changed",),
        severity="critical",
    ),
    Fault(
        name="keys-stay",
        meaning="The second server cannot destroy the keys of finished runs",
        remedy="Its log says why. Free space, or restore the folder of `--keys`; it tries again every few seconds",
        rule="quoron_second_server_keys_end == 0",
        unless=("database-away", "disk-full"),
        wait="30s",
        severity="critical",
    ),
)
BY_NAME = {fault.name: fault for fault in FAULTS}


def rules() -> str:
    """The rules' file."""
    return HEAD + "".join(map(_rule, FAULTS))


def _rule(fault: Fault) -> str:
    return "\n".join(
        [
            f"      - alert: {fault.alarm}",
            "        expr: |",
            *(f"          {line}" for line in fault.expression.split("\n")),
            *([] if fault.wait is None else [f"        for: {fault.wait}"]),
            f"        labels: {{severity: {fault.severity}}}",
            "        annotations:",
            f'          summary: "{fault.meaning}."',
            f"          runbook: docs/runbook.md#{fault.name}",
            "",
        ]
    )


def page() -> str:
    """The whole runbook, with today's table."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    rows = (f'| <a id="{each.name}"></a>{each.meaning} | `{each.alarm}` | {each.remedy} |' for each in FAULTS)
    table = "\n".join(["| fault | alarm | what to do |", "| --- | --- | --- |", *rows])
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


if __name__ == "__main__":
    sys.exit(written.page(RULES, rules()) | written.page(PAGE, page()))
