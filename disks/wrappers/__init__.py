"""Disks round other disks. Each passes the contract of a disk, and each of its views, whatever disk is inside."""
