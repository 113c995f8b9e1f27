"""First statistics: counts, histograms, quantiles and means of a table or of users' own arrays."""
