"""JSON: lines, arrays and values of any form, as rows."""
