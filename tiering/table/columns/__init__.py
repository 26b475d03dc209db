"""Types of columns, nested ones too: their texts, which widen into which, and which values they keep."""
