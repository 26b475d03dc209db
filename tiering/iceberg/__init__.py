"""Tables published as Iceberg metadata beside their parts, so that other engines read them in place."""
