"""Which tables, parts and room there are: reads every disk; makes and alters tables."""
