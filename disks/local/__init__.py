"""A disk that is a directory: touches what lies below its path, through `disks.effects`."""
