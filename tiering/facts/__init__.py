"""What a store is and does, as rows: what `--json` prints and the dashboard shows. Changes nothing."""
