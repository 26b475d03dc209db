"""Parts into larger ones: reads parts, writes one, by one transaction."""
