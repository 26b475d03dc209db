"""The index of parts: what is known of the parts on all disks, in one SQLite database, compared with the disks."""
