"""What the disks show of tables: their parts, read once and kept, and looked at again where something has changed."""
