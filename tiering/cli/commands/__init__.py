"""The verbs of tiering itself: each calls the engine and reports."""
