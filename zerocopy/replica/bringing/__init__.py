"""Parts of other replicas, brought to this one: their bytes come side by side, and are committed several at a time."""
