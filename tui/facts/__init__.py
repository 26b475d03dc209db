"""What the screens show, as pure snapshots: each has the numbers that a verb prints with `--json`. Changes nothing."""
