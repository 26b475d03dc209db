"""The query engine (DuckDB): what may run, which files it needs, and how it reads them."""
