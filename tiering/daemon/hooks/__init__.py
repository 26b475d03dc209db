"""Who is told what happens to a store: commands and webhooks, beside the daemon's work and never in its way."""
