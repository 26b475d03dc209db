"""Events for commands and webhooks, sent beside the daemon's work and never in its way."""
