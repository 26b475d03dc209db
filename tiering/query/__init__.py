"""SQL and scans: reads parts, changes nothing."""
