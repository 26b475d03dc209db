"""What a store is and does, as plain documents: what `--json` prints and the dashboard shows. Changes nothing."""
