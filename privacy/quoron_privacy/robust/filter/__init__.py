"""The filters of Ghazi et al.: who of a cohort counts, after how many removals a phase halts, at what price."""
