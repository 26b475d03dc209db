"""Options, output, errors, sessions: what every verb of every package stands on."""
