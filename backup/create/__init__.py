"""Making a backup: one instant of all disks, what of it is new, sending that, and the header last. Changes no disk."""
