"""The store as programs use it: joins the rooms beside it; what they do not touch it does not touch."""

from tiering.engine.store import Store as Store
from tiering.engine.table import Table as Table
