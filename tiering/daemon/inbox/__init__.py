"""Files that land in a directory become rows, once: takes them, reads them, inserts them, and puts them aside with a
report. Touches nothing outside of the inbox but by an insert and the journal."""
