"""Object stores, disks and the file table: where bytes live and how a set of changes becomes one."""
