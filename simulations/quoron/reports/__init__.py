"""What people see of a run: progress, summary, tables, the report page."""
