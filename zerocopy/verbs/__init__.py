"""The verbs of this package: each calls one function of the rooms beside it and reports."""
