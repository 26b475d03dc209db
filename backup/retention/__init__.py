"""Which backups stay, and what goes with the others: the only place that deletes a repository's content."""
