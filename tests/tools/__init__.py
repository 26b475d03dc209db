"""Generators of documentation and of the completion's table: `make generate`. No part of the wheel."""
