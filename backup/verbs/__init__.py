"""The verbs of this package: each calls one method of `Repository` and reports."""
